package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
)

// began begins a GET and returns where its result will be.
func began(client *Client, key string, within time.Duration) (*async.Call, <-chan async.Result) {
	results := make(chan async.Result, 2)
	call := &async.Call{Deadline: time.Now().Add(within), Done: func(r async.Result) { results <- r }}
	client.BeginGet(call, key, GetOptions{})
	return call, results
}

func TestRequestsThatNoGoroutineWaitsForNeedNone(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(1000)
		client := mustDialTo(t, b.pipeBroker, options)
		await.Receive(get(t.Context(), client, "")[""]) // all that is made once: it times out
		synctest.Wait()
		before := goroutines()
		const requests = 100
		var results []<-chan async.Result
		for range requests {
			_, r := began(client, "k", 5*time.Second)
			results = append(results, r)
		}
		received := b.received()
		if more := goroutines() - before; more > 1 { // serve
			t.Errorf("%d requests that are under way have %d goroutines", requests, more)
		}
		for _, request := range received[1:] {
			_, _ = value(request, "v", 0).WriteTo(b.present())
		}
		for _, r := range results {
			if got := await.Receive(r); got.Err != nil || string(got.Value) != "v" || !got.Exists {
				t.Fatalf("%+v", got)
			}
		}
	})
}

func TestRequestsThatWaitForRoomNeedNoGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		const room, requests = 16, 100 // two are kept for urgent ones
		b := newQuietBroker(room)
		client := mustDialTo(t, b.pipeBroker, options)
		before := goroutines()
		results := make(map[string]<-chan async.Result)
		for i := range requests {
			key := fmt.Sprint("k", i)
			_, results[key] = began(client, key, 9*time.Second-time.Duration(i)*time.Millisecond)
		}
		received := b.received()
		if more := goroutines() - before; more > 1 || len(received) != room-2 {
			t.Errorf("%d of %d requests came in, and they have %d goroutines", len(received), requests, more)
		}
		for next := 0; next < len(received); next++ {
			if late := fmt.Sprint("k", requests-1-(next-(room-2))); next >= room-2 && keyOf(received[next]) != late {
				t.Fatalf("request %d is for %s, want %s: of those that wait, the earliest deadline comes first", next, keyOf(received[next]), late)
			}
			_, _ = value(received[next], "v", 0).WriteTo(b.present())
			b.acknowledge(received[next].PacketID, 0)
			received = b.received()
		}
		for key, r := range results {
			if got := await.Receive(r); got.Err != nil || string(got.Value) != "v" {
				t.Fatalf("%s: %+v", key, got)
			}
		}
		if waits := client.mqtt.waiting.count.Load(); waits != 0 {
			t.Errorf("%d requests are said to wait", waits)
		}
	})
}

// Renewals wait without a goroutine. Other requests of the client, which wait in goroutines of the
// program, must not starve them.
func TestInvariant38RequestsOfGoroutinesDoNotStarveThoseWithout(t *testing.T) {
	for _, urgent := range []bool{false, true} {
		inBubble(t, func(t *testing.T, options Options) {
			const goroutines, renewals = 20, 3
			b := newQuietBroker(1)
			client := mustDialTo(t, b.pipeBroker, options)
			ctx, cancel := context.WithCancel(t.Context())
			var working sync.WaitGroup
			for range goroutines {
				working.Go(func() {
					_, _ = client.GetWith(ctx, "other", GetOptions{Urgent: urgent})
				})
			}
			b.received() // one has left, and the others wait
			for range renewals {
				call := &async.Call{Deadline: time.Now().Add(9 * time.Second), Done: func(async.Result) {}}
				client.BeginGet(call, "renewal", GetOptions{Urgent: urgent})
			}
			left := 0
			for range 2 * renewals {
				received := b.received()
				b.acknowledge(received[len(received)-1].PacketID, 0)
				if received = b.received(); keyOf(received[len(received)-1]) == "renewal" {
					left++
				}
			}
			if left != renewals {
				t.Errorf("urgent: %t: of %d slots %d are for the %d requests without a goroutine; want each second one", urgent, 2*renewals, left, renewals)
			}
			// Nothing is kept for requests that wait no more.
			for range goroutines - renewals - 1 {
				received := b.received()
				b.acknowledge(received[len(received)-1].PacketID, 0)
			}
			if received := b.received(); len(received) != goroutines+renewals {
				t.Errorf("urgent: %t: %d requests came in, want %d", urgent, len(received), goroutines+renewals)
			}
			cancel()
			await.Done(working.Wait)
		})
	}
}

// A renewal has no goroutine that waits for it. It must not wait until all requests before it have left,
// however few the broker takes at once.
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
			client.BeginGet(&async.Call{Deadline: time.Now().Add(9 * time.Second), Done: func(async.Result) {}}, "renewal", GetOptions{Urgent: true})
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
func TestASlotThatIsKeptForNoRequestIsGivenBack(t *testing.T) {
	w, waiting := newWindow(1), 1
	w.others = func(bool) int { return waiting }
	w.acquire(t.Context(), nil, true)
	got := make(chan bool, 1)
	go func() { got <- w.acquire(t.Context(), nil, true) }()
	await.Until(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.urgent) == 1
	})
	w.free()
	if w.kept != 1 || w.inUse() != 1 {
		t.Errorf("%d slots are kept and %d in use, want 1", w.kept, w.inUse())
	}
	waiting = 0
	w.giveBack()
	if !await.Receive(got) || w.kept != 0 || w.inUse() != 1 {
		t.Errorf("%d slots are kept and %d in use", w.kept, w.inUse())
	}
}

// The goroutine that gives results while a client is closed may be the one that ends all tenures.
func TestInvariant45ATraceThatBlocksHoldsUpNoResultWhileTheClientCloses(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		opened := make(chan struct{})
		var traced atomic.Int64
		options.Trace = &Trace{Request: func(context.Context, RequestInfo) {
			await.Receive(opened)
			traced.Add(1)
		}}
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		_, first := began(client, "first", 9*time.Second)
		_, second := began(client, "second", 9*time.Second)
		if received := b.received(); len(received) != 2 {
			t.Fatalf("%d requests came in", len(received))
		}
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		began := time.Now()
		for _, result := range []<-chan async.Result{first, second} {
			if got := await.Receive(result); !errors.Is(got.Err, ErrClosed) || time.Since(began) > 0 {
				t.Errorf("after %v: %v, want ErrClosed at once", time.Since(began), got.Err)
			}
		}
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("Close does not wait for a Trace")
		}
		close(opened)
		if err := await.Receive(closed); err != nil || traced.Load() != 2 {
			t.Errorf("Close returns %v after %d traces, want 2", err, traced.Load())
		}
	})
}

func TestRequestsThatWaitForAConnectionNeedNoGoroutineAndLeaveOverTheNextOne(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(1000)
		client := mustDialTo(t, b.pipeBroker, options)
		down := func(is bool) {
			b.pipeBroker.mu.Lock()
			defer b.pipeBroker.mu.Unlock()
			b.down = is
		}
		down(true)
		b.cut()
		b.received()
		before := goroutines()
		var results []<-chan async.Result
		for range 100 {
			_, r := began(client, "k", 9*time.Second)
			results = append(results, r)
		}
		_, late := began(client, "k", time.Second)
		synctest.Wait()
		if more := goroutines() - before; more > 0 {
			t.Errorf("they have %d goroutines", more)
		}
		if r := await.Receive(late); !errors.Is(r.Err, ErrNotSent) || !strings.Contains(r.Err.Error(), "is down") {
			t.Errorf("one that waits in vain: %v; want the reason", r.Err)
		}
		down(false)
		time.Sleep(7 * time.Second)
		received := b.received()
		if len(received) != 100 {
			t.Fatalf("%d requests came in, want 100", len(received))
		}
		for _, request := range received {
			_, _ = value(request, "v", 0).WriteTo(b.present())
		}
		for _, r := range results {
			if got := await.Receive(r); got.Err != nil {
				t.Fatal(got.Err)
			}
		}
	})
}

func TestInvariant53ARequestThatWaitsForRoomFailsWithTheConnectionThatItIsBoundTo(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(1)
		client := mustDialTo(t, b.pipeBroker, options)
		began(client, "k", 9*time.Second)
		results := make(chan async.Result, 1)
		call := &async.Call{Deadline: time.Now().Add(9 * time.Second), Done: func(r async.Result) { results <- r }}
		client.BeginGet(call, "bound", GetOptions{Binding: Binding{Connection: client.Lost()}})
		b.received()
		b.pipeBroker.mu.Lock()
		b.down = true
		b.pipeBroker.mu.Unlock()
		start := time.Now()
		b.cut()
		if r := await.Receive(results); !errors.Is(r.Err, errBoundConnection) || !errors.Is(r.Err, ErrNotSent) || time.Since(start) > 0 {
			t.Errorf("%v after %v", r.Err, time.Since(start))
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
			client.BeginSet(&async.Call{Deadline: start.Add(within), Done: func(r async.Result) {
				if took := time.Since(start); took != min(within, defaultRequestTimeout) || !errors.Is(r.Err, context.DeadlineExceeded) {
					t.Errorf("the request with a deadline after %v ends after %v: %v", within, took, r.Err)
				}
				ends <- end{within, errors.Is(r.Err, ErrOutcomeUnknown)}
			}}, "k", nil, SetOptions{})
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

// Over MQTT the connection bounds the request, and over a Conn of the program a context does.
func TestATimeoutOfARequestBoundsItBesideItsContext(t *testing.T) {
	const short, long = time.Second, time.Hour
	for _, requestTimeout := range []time.Duration{2 * time.Second, defaultRequestTimeout} {
		for _, timeout := range []time.Duration{short, long} {
			for name, request := range map[string]func(context.Context, *Client, time.Duration) error{
				"Set": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.Set(ctx, "k", nil, SetOptions{Timeout: timeout})
					return err
				},
				"GetWith": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.GetWith(ctx, "k", GetOptions{Timeout: timeout})
					return err
				},
				"Del": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.Del(ctx, "k", DelOptions{Timeout: timeout})
					return err
				},
				"VDel": func(ctx context.Context, client *Client, timeout time.Duration) error {
					_, err := client.VDel(ctx, "k", nil, DelOptions{Timeout: timeout})
					return err
				},
			} {
				inBubble(t, func(t *testing.T, options Options) {
					options.RequestTimeout = requestTimeout
					client := mustDialTo(t, newQuietBroker(10).pipeBroker, options)
					start := time.Now()
					err := request(t.Context(), client, timeout)
					if took := time.Since(start); took != min(timeout, requestTimeout) || !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s with a Timeout of %v: %v after %v", name, timeout, err, took)
					}
					ctx, cancel := context.WithTimeout(t.Context(), short/2)
					defer cancel()
					start = time.Now()
					if err := request(ctx, client, timeout); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != short/2 {
						t.Errorf("%s whose context ends first: %v after %v", name, err, time.Since(start))
					}
					if err := request(t.Context(), client, -1); !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), "Timeout -1ns") {
						t.Errorf("%s with a negative Timeout: %v", name, err)
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
		sent, results := began(client, "k", 5*time.Second)
		held, heldResults := began(client, "k", 5*time.Second)
		synctest.Wait()
		held.Cancel(cause)
		if r := await.Receive(heldResults); !errors.Is(r.Err, ErrNotSent) || !errors.Is(r.Err, cause) {
			t.Errorf("the one that waits for the broker: %v", r.Err)
		}
		sent.Cancel(cause)
		sent.Cancel(errors.New("again"))
		if r := await.Receive(results); !errors.Is(r.Err, ErrOutcomeUnknown) || !errors.Is(r.Err, cause) {
			t.Errorf("the one that was sent: %v", r.Err)
		}
		if time.Since(start) > 0 || len(results)+len(heldResults) > 0 || len(b.received()) != 1 {
			t.Errorf("after %v, with %d more results and %d requests", time.Since(start), len(results)+len(heldResults), len(b.received()))
		}
	})
}

func TestRequestsThatNoGoroutineWaitsForEndWithTheirConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		_, results := began(client, "k", 5*time.Second)
		b.received()
		b.cut()
		if r := await.Receive(results); !errors.Is(r.Err, ErrOutcomeUnknown) || !errors.Is(r.Err, errConnectionLost) {
			t.Errorf("a lost connection: %v", r.Err)
		}
		_, results = began(client, "k", 5*time.Second) // by the next connection
		if len(b.received()) != 1 {
			t.Errorf("%d requests came in without a connection", len(b.received()))
		}
		time.Sleep(2 * time.Second)
		requests := b.received()
		_, _ = value(requests[len(requests)-1], "v", 0).WriteTo(b.present())
		if r := await.Receive(results); r.Err != nil || string(r.Value) != "v" {
			t.Errorf("the next connection: %+v", r)
		}
		_, results = began(client, "k", 5*time.Second)
		b.received()
		_ = client.Close()
		select {
		case r := <-results:
			if !errors.Is(r.Err, ErrOutcomeUnknown) || !errors.Is(r.Err, ErrClosed) {
				t.Errorf("Close: %v", r.Err)
			}
		default:
			t.Error("Close returns before the request has its result")
		}
	})
}

// The client's own warnings are written where they cannot delay what arrives.
func TestARefusedTimestampIsRepeatedWithoutAGoroutineAndItsWarningDelaysNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		shut := make(chan struct{})
		options.Logger = slog.New(waitingHandler{slog.DiscardHandler, shut})
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		results := make(chan async.Result, 1)
		client.BeginSet(&async.Call{Deadline: time.Now().Add(5 * time.Second), Done: func(r async.Result) { results <- r }}, "k", nil, SetOptions{})
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
		if r := await.Receive(results); r.Err != nil {
			t.Errorf("the repetition: %v", r.Err)
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
		{"held back by the Receive Maximum", func(_ *testing.T, b *quietBroker, client *Client) {
			began(client, "k", 9*time.Second)
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
		for _, begin := range []bool{false, true} {
			name := test.name + map[bool]string{true: ", without a goroutine that waits"}[begin]
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, options Options) {
					b := newQuietBroker(1)
					client := mustDialTo(t, b.pipeBroker, options)
					test.prepare(t, b, client)
					set := func(binding Binding) <-chan error {
						results := make(chan error, 1)
						options := SetOptions{Binding: binding}
						if begin {
							call := &async.Call{Deadline: time.Now().Add(8 * time.Second), Done: func(r async.Result) { results <- r.Err }}
							client.BeginSet(call, "k", nil, options)
							return results
						}
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
}
