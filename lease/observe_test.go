package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// observed collects what one Observe yields.
type observed struct {
	mu    sync.Mutex
	shown []string // names of holders, "-" for none, or errors
	ended chan struct{}
}

func (o *observed) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprint(o.shown)
}

// observe observes a lease until ctx ends.
func observe(ctx context.Context, l *lease.Lease) *observed {
	o := &observed{ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		for holder, err := range l.Observe(ctx) {
			text := holder.Name
			if !holder.Held {
				text = "-"
			}
			for name, sentinel := range map[string]error{
				"refused": transport.ErrNotAuthorized, "silent": transport.ErrOutcomeUnknown, "closed": transport.ErrClosed,
			} {
				if errors.Is(err, sentinel) {
					text += "!" + name
				}
			}
			o.mu.Lock()
			o.shown = append(o.shown, text)
			o.mu.Unlock()
		}
	}()
	return o
}

// forged returns a notification of a client that is no store.
func forged(words ...string) transporttest.Notification {
	return transporttest.Notification{
		Key:       name,
		Payload:   resp3.AppendCommand(nil, append([]string{"NOTIFY"}, words...)...),
		Timestamp: hlc.Timestamp{Wall: time.Now().Add(1000 * time.Hour).UnixMilli(), Node: "forger"}.String(),
	}
}

// The observer shows each holder, and no renewal.
func TestInvariant26AnObserverIgnoresForgedNotifications(t *testing.T) {
	for _, words := range [][]string{{"SET", "VALUE", "forger:1"}, {"DELETE"}} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			a, b := twoNodes(t, store, lease.Options{})
			tenure := a.mustAcquire(t)
			observer := newNode(t, store, "observer", lease.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			o := observe(ctx, observer.Lease)
			synctest.Wait()
			looks := observer.scripted("GET", harmless)
			for range 1000 {
				observer.conn.Forge(forged(words...))
				time.Sleep(ttl / 1000)
			}
			if got := looks(); got < 1 || got > 60 {
				t.Errorf("%d looks in one TTL of forged notifications, want one in TTL/50 at most", got)
			}
			mustRelease(t, tenure)
			time.Sleep(ttl / 10) // less than the time after which it would look by itself
			b.mustAcquire(t)
			time.Sleep(ttl / 10)
			synctest.Wait()
			cancel()
			await.Receive(o.ended)
			if got, want := o.String(), "[node-a - node-b]"; got != want {
				t.Errorf("shown %v, want %v", got, want)
			}
		})
	}
}

func TestObserveReportsEachKindOfErrorOnceAndGoesOnWithABackoff(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
		observer, conn := newFailing(t, store, "observer", lease.Options{})
		o := observe(t.Context(), observer.Lease)
		for _, obstacle := range []error{refusal(transport.ErrNotAuthorized), fmt.Errorf("%w", transport.ErrOutcomeUnknown), nil} {
			time.Sleep(5 * ttl)
			conn.fail(obstacle)
			for range 500 { // a flood of notifications does not hasten it
				conn.Forge(forged("SET", "VALUE", "forger:1"))
				time.Sleep(ttl / 100)
			}
			if asked := conn.count(); obstacle != nil && (asked < 5 || asked > 80) {
				t.Errorf("%d requests in 5 TTL", asked)
			}
		}
		if err := observer.client.Close(); err != nil {
			t.Fatal(err)
		}
		await.Receive(o.ended)
		if got, want := o.String(), "[node-a node-a!refused node-a!silent node-a node-a!closed]"; got != want {
			t.Errorf("shown %v, want %v", got, want)
		}
	})
}
