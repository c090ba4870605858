package transport

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
)

// began begins a GET that ends after some time, and returns what gives it up and where its result will be.
func began(t *testing.T, client *Client, key string, within time.Duration) (cancel context.CancelCauseFunc, result <-chan outcome) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ends := time.Now().Add(within)
	results := make(chan outcome, 1)
	go func() {
		entry, err := client.GetWith(ctx, key, GetOptions{Binding: Binding{Until: ends}})
		results <- outcome{entry, err}
	}()
	synctest.Wait()
	return cancel, results
}

// A renewal must not wait until all requests before it have left, however few the broker takes at once.
func TestInvariant38ARenewalLeavesSoonAtAnyReceiveMaximum(t *testing.T) {
	for _, receiveMaximum := range []uint16{1, 4, 7, 8, 100} {
		inBubble(t, func(t *testing.T, options Options) {
			goroutines := 20 + int(receiveMaximum)
			b := newQuietBroker(receiveMaximum)
			client := mustDialTo(t, b.pipeBroker, options)
			ctx, cancel := context.WithCancel(t.Context())
			var working sync.WaitGroup
			for range goroutines {
				working.Go(func() { _, _ = client.Get(ctx, "work") })
			}
			b.received() // the others wait
			working.Go(func() { _, _ = client.GetWith(ctx, "renewal", GetOptions{Urgent: true}) })
			answers := 0
			for received := b.received(); keyOf(received[len(received)-1]) != "renewal" && answers < goroutines; answers++ {
				b.acknowledge(received[answers].PacketID, 0)
				received = b.received()
			}
			if answers > 2 {
				t.Errorf("with a Receive Maximum of %d the renewal leaves after %d answers, want 2 at most", receiveMaximum, answers)
			}
			cancel()
			await.Done(working.Wait)
		})
	}
}

// A request that gives up where a slot is kept for it leaves the slot to others.
func TestInvariant53ARequestThatWaitsForRoomFailsWithTheConnectionThatItIsBoundTo(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(1)
		client := mustDialTo(t, b.pipeBroker, options)
		began(t, client, "k", 9*time.Second)
		results, lost := make(chan error, 1), client.Lost()
		go func() {
			_, err := client.GetWith(t.Context(), "bound", GetOptions{Binding: Binding{Connection: lost}})
			results <- err
		}()
		b.received()
		b.pipeBroker.mu.Lock()
		b.down = true
		b.pipeBroker.mu.Unlock()
		start := time.Now()
		b.cut()
		if err := await.Receive(results); !errors.Is(err, errBoundConnection) || !errors.Is(err, ErrNotSent) || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestEachRequestEndsAtItsOwnDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(4)
		client := mustDialTo(t, b.pipeBroker, options)
		start := time.Now()
		type end struct {
			within  time.Duration
			unknown bool
		}
		ends := make(chan end, 10)
		begin := func(within time.Duration) {
			go func() {
				_, err := client.Set(t.Context(), "k", nil, SetOptions{Binding: Binding{Until: time.Now().Add(within)}})
				if took := time.Since(start); took != min(within, defaultRequestTimeout) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the request with a deadline after %v ends after %v: %v", within, took, err)
				}
				ends <- end{within, errors.Is(err, ErrOutcomeUnknown)}
			}()
			synctest.Wait()
		}
		for _, seconds := range []time.Duration{3, 1, 60, 2} {
			begin(seconds * time.Second)
		}
		begin(1500 * time.Millisecond) // the broker takes no more
		for _, want := range []end{{time.Second, true}, {1500 * time.Millisecond, false}, {2 * time.Second, true}, {3 * time.Second, true}, {time.Minute, true}} {
			if got := await.Receive(ends); got != want {
				t.Errorf("%+v ends, want %+v", got, want)
			}
		}
	})
}

func TestARequestWithoutACallersDeadlineEndsAtTheRequestTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		options.RequestTimeout = 3 * time.Second
		b := newQuietBroker(100)
		client := mustDialTo(t, b.pipeBroker, options)
		for name, ctx := range map[string]context.Context{"no end": context.WithoutCancel(t.Context()), "an end that is never reached": t.Context()} {
			start := time.Now()
			_, err := client.Get(ctx, "k")
			if took := time.Since(start); took != options.RequestTimeout || !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a context with %s: %v after %v", name, err, took)
			}
		}
		requests := b.received()
		if expiry := requests[len(requests)-1].Properties.MessageExpiry; expiry == nil || *expiry != 3 {
			t.Errorf("the Message Expiry Interval is %v, want 3", expiry)
		}
	})
}

// until returns a binding that ends so long from now.
func until(timeout time.Duration) Binding { return Binding{Until: time.Now().Add(timeout)} }

func TestTheBindingOfARequestBoundsItBesideItsContext(t *testing.T) {
	const short, long = time.Second, time.Hour
	for _, requestTimeout := range []time.Duration{2 * time.Second, defaultRequestTimeout} {
		for _, timeout := range []time.Duration{short, long} {
			for name, request := range map[string]func(context.Context, *Client, time.Duration) error{
				"Set": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.Set(ctx, "k", nil, SetOptions{Binding: until(timeout)})
					return err
				},
				"GetWith": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.GetWith(ctx, "k", GetOptions{Binding: until(timeout)})
					return err
				},
				"Del": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.Del(ctx, "k", DelOptions{Binding: until(timeout)})
					return err
				},
				"VDel": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.VDel(ctx, "k", nil, DelOptions{Binding: until(timeout)})
					return err
				},
			} {
				inBubble(t, func(t *testing.T, options Options) {
					options.RequestTimeout = requestTimeout
					client := mustDialTo(t, newQuietBroker(10).pipeBroker, options)
					start := time.Now()
					err := request(t.Context(), client, timeout)
					if took := time.Since(start); took != min(timeout, requestTimeout) || !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s within %v: %v after %v", name, timeout, err, took)
					}
					ctx, cancel := context.WithTimeout(t.Context(), short/2)
					defer cancel()
					start = time.Now()
					if err := request(ctx, client, timeout); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != short/2 {
						t.Errorf("%s whose context ends first: %v after %v", name, err, time.Since(start))
					}
					if err := request(t.Context(), client, -1); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s whose time is over before it begins: %v", name, err)
					}
				})
			}
		}
	}
}

func TestARequestIsCanceledWhereverItIs(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(1)
		client := mustDialTo(t, b.pipeBroker, options)
		cause, start := errors.New("given up"), time.Now()
		sent, results := began(t, client, "k", 5*time.Second)
		held, heldResults := began(t, client, "k", 5*time.Second)
		synctest.Wait()
		held(cause)
		if r := await.Receive(heldResults); !errors.Is(r.err, ErrNotSent) || !errors.Is(r.err, cause) {
			t.Errorf("the one that waits for the broker: %v", r.err)
		}
		sent(cause)
		if r := await.Receive(results); !errors.Is(r.err, ErrOutcomeUnknown) || !errors.Is(r.err, cause) {
			t.Errorf("the one that was sent: %v", r.err)
		}
		if time.Since(start) > 0 || len(results)+len(heldResults) > 0 || len(b.received()) != 1 {
			t.Errorf("after %v, with %d more results and %d requests", time.Since(start), len(results)+len(heldResults), len(b.received()))
		}
	})
}

func TestRequestsEndWithTheirConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		_, results := began(t, client, "k", 5*time.Second)
		b.received()
		b.cut()
		if r := await.Receive(results); !errors.Is(r.err, ErrOutcomeUnknown) || !errors.Is(r.err, errConnectionLost) {
			t.Errorf("a lost connection: %v", r.err)
		}
		_, results = began(t, client, "k", 5*time.Second) // by the next connection
		if len(b.received()) != 1 {
			t.Errorf("%d requests came in without a connection", len(b.received()))
		}
		time.Sleep(2 * time.Second)
		requests := b.received()
		_, _ = value(requests[len(requests)-1], "v", 0).WriteTo(b.present())
		if r := await.Receive(results); r.err != nil || string(r.entry.Value) != "v" {
			t.Errorf("the next connection: %+v", r)
		}
		_, results = began(t, client, "k", 5*time.Second)
		b.received()
		_ = client.Close()
		if r := await.Receive(results); !errors.Is(r.err, ErrOutcomeUnknown) || !errors.Is(r.err, ErrClosed) {
			t.Errorf("Close: %v", r.err)
		}
	})
}

// The client's own warnings are written where they cannot delay what arrives.
func TestTheWarningOfARefusedTimestampDelaysNoRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		shut := make(chan struct{})
		options.Logger = slog.New(waitingHandler{slog.DiscardHandler, shut})
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		results := make(chan error, 1)
		go func() {
			_, err := client.Set(t.Context(), "k", nil, SetOptions{})
			results <- err
		}()
		answer := func(request *packets.Publish, text string) {
			packet := value(request, "", 0)
			packet.Content.(*packets.Publish).Payload = []byte(text)
			_, _ = packet.WriteTo(b.present())
		}
		answer(b.received()[0], "-ERR "+string(protocol.TimestampTooFarAhead)+"\r\n")
		requests := b.received()
		if len(requests) != 2 || slices.Equal(requests[0].Properties.CorrelationData, requests[1].Properties.CorrelationData) {
			t.Fatalf("%d requests came in; want a second one", len(requests))
		}
		answer(requests[1], "+OK\r\n")
		if err := await.Receive(results); err != nil {
			t.Errorf("the repetition: %v", err)
		}
		close(shut)
	})
}

// waitingHandler is a handler of the program that does not return until a channel is closed.
type waitingHandler struct {
	slog.Handler
	until <-chan struct{}
}

func (h waitingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h waitingHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }

func (h waitingHandler) Handle(_ context.Context, record slog.Record) error {
	if record.Level >= slog.LevelWarn {
		await.Receive(h.until)
	}
	return nil
}

func TestABindingBoundsARequestWhereverItIs(t *testing.T) {
	cause := errors.New("the tenure is over")
	for _, test := range []struct {
		name    string
		prepare func(*testing.T, *quietBroker, *Client)
		want    error
		sent    int // requests that came in, the one of prepare included
	}{
		{"sent", func(*testing.T, *quietBroker, *Client) {}, ErrOutcomeUnknown, 1},
		{"held back by the Receive Maximum", func(t *testing.T, b *quietBroker, client *Client) {
			began(t, client, "k", 9*time.Second)
			b.received()
		}, ErrNotSent, 1},
		{"without a connection", func(_ *testing.T, b *quietBroker, _ *Client) {
			b.pipeBroker.mu.Lock()
			b.down = true
			b.pipeBroker.mu.Unlock()
			b.cut()
			b.received()
		}, ErrNotSent, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, options Options) {
				b := newQuietBroker(1)
				client := mustDialTo(t, b.pipeBroker, options)
				test.prepare(t, b, client)
				set := func(binding Binding) <-chan error {
					results := make(chan error, 1)
					options := SetOptions{Binding: binding}
					go func() {
						_, err := client.Set(t.Context(), "k", nil, options)
						results <- err
					}()
					return results
				}
				usable, end := context.WithCancelCause(t.Context())
				start, result := time.Now(), set(Binding{While: usable})
				synctest.Wait()
				end(cause)
				if err := await.Receive(result); !errors.Is(err, test.want) || !errors.Is(err, cause) || time.Since(start) > 0 {
					t.Errorf("While ends: %v after %v, want %v and the cause at once", err, time.Since(start), test.want)
				}
				if got := len(b.received()); got != test.sent {
					t.Errorf("%d requests came in, want %d", got, test.sent)
				}
				if err := await.Receive(set(Binding{While: usable})); !errors.Is(err, ErrNotSent) || !errors.Is(err, cause) || time.Since(start) > 0 {
					t.Errorf("While is over: %v after %v", err, time.Since(start))
				}
				err := await.Receive(set(Binding{Until: start.Add(2 * time.Second)}))
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 2*time.Second {
					t.Errorf("Until passes: %v after %v", err, took)
				}
			})
		})
	}
}
