package transport

import (
	"context"
	"errors"
	"strings"
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
		entry, err := client.GetWith(ctx, key, Binding{Until: ends})
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
			working.Go(func() { _, _ = client.GetWith(ctx, "renewal", Binding{Urgent: true}) })
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

func TestABindingBoundsARequestWhereverItIs(t *testing.T) {
	cause := errors.New("the tenure is over")
	for _, test := range []struct {
		name    string
		prepare func(*testing.T, *quietBroker, *Client)
		want    error
		says    string
		sent    int // requests that came in, the one of prepare included
	}{
		{"sent", func(*testing.T, *quietBroker, *Client) {}, ErrOutcomeUnknown, "", 1},
		{"held back by the Receive Maximum", func(t *testing.T, b *quietBroker, client *Client) {
			began(t, client, "k", 9*time.Second)
			b.received()
		}, ErrNotSent, "Receive Maximum 1", 1},
		{"without a connection", func(_ *testing.T, b *quietBroker, _ *Client) {
			b.refuseToDial(true)
			b.cut()
			b.received()
		}, ErrNotSent, "", 0},
	} {
		for bound, begin := range map[string]func(*Client) (request func() error, end func()){
			"While": func(client *Client) (func() error, func()) {
				usable, end := context.WithCancelCause(context.Background())
				return func() error {
					_, err := client.Set(context.Background(), "k", nil, SetOptions{Binding: Binding{While: usable}})
					return err
				}, func() { end(cause) }
			},
			"the context": func(client *Client) (func() error, func()) {
				ctx, end := context.WithCancelCause(context.Background())
				return func() error {
					_, err := client.GetWith(ctx, "k", Binding{Urgent: true})
					return err
				}, func() { end(cause) }
			},
		} {
			t.Run(test.name+", ended by "+bound, func(t *testing.T) {
				inBubble(t, func(t *testing.T, options Options) {
					b := newQuietBroker(1)
					client := mustDialTo(t, b.pipeBroker, options)
					test.prepare(t, b, client)
					request, end := begin(client)
					start, result := time.Now(), make(chan error, 1)
					go func() { result <- request() }()
					synctest.Wait()
					end()
					if err := await.Receive(result); !errors.Is(err, test.want) || !errors.Is(err, cause) || !strings.Contains(err.Error(), test.says) {
						t.Errorf("%v, want %v, %q and the cause", err, test.want, test.says)
					}
					if got := len(b.received()); got != test.sent {
						t.Errorf("%d requests came in, want %d", got, test.sent)
					}
					if err := request(); !errors.Is(err, ErrNotSent) || !errors.Is(err, cause) || time.Since(start) > 0 {
						t.Errorf("when it is over: %v after %v", err, time.Since(start))
					}
					_, err := client.VDel(t.Context(), "k", nil, DelOptions{Binding: Binding{Until: start.Add(2 * time.Second)}})
					if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 2*time.Second {
						t.Errorf("Until passes: %v after %v", err, took)
					}
					if got := len(b.received()); got != test.sent { // the first counts until it is acknowledged
						t.Errorf("%d requests came in at last", got)
					}
				})
			})
		}
	}
}
