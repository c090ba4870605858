package transport

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
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
