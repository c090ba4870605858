package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// observe observes a lease until ctx ends. errs has names for errors.
func observe(ctx context.Context, l *lease.Lease, errs map[string]error) *observed {
	o := &observed{ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		for holder, err := range l.Observe(ctx) {
			text := holder.Name
			if !holder.Held {
				text = "-"
			}
			for name, sentinel := range errs {
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

func TestInvariant26AnObserverIgnoresForgedNotifications(t *testing.T) {
	forged := func(words ...string) transport.Notification {
		return transport.Notification{
			Key:       name,
			Payload:   resp3.AppendCommand(nil, append([]string{"NOTIFY"}, words...)...),
			Timestamp: hlc.Timestamp{Wall: time.Now().Add(1000 * time.Hour).UnixMilli(), Node: "forger"}.String(),
		}
	}
	for _, words := range [][]string{{"SET", "VALUE", "forger:1"}, {"DELETE"}} {
		t.Run(words[0], func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
				tenure := a.mustAcquire(t)
				observer := newNode(t, store, "observer", lease.Options{})
				ctx, cancel := context.WithCancel(t.Context())
				o := observe(ctx, observer.Lease, nil)
				synctest.Wait()
				looks := observer.scripted("GET", harmless)
				const flood = 1000
				for range flood {
					observer.conn.Forge(forged(words...))
					time.Sleep(ttl / 1000)
				}
				if got := looks(); got < 1 || got > 60 {
					t.Errorf("%d looks in one TTL of forged notifications, want one in TTL/50 at most", got)
				}
				if err := tenure.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
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
		})
	}
}

func TestObserveReportsEachKindOfErrorOnceAndGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
		l, client, conn := newFailing(t, store, "observer", lease.Options{})
		o := observe(t.Context(), l, map[string]error{
			"refused": transport.ErrNotAuthorized, "silent": transport.ErrOutcomeUnknown, "closed": transport.ErrClosed,
		})
		for _, obstacle := range []error{refusal(transport.ErrNotAuthorized), fmt.Errorf("%w", transport.ErrOutcomeUnknown), nil} {
			time.Sleep(5 * ttl)
			conn.set(nil)
			if obstacle != nil {
				conn.set(failing(obstacle))
			}
		}
		time.Sleep(5 * ttl)
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		await.Receive(o.ended)
		if got, want := o.String(), "[node-a node-a!refused node-a!silent node-a node-a!closed]"; got != want {
			t.Errorf("shown %v, want %v", got, want)
		}
	})
}

func TestObserveAsksAgainWithABackoffWhileItFails(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		l, _, conn := newFailing(t, store, "observer", lease.Options{})
		conn.set(func(request transport.Request) error {
			if strings.Contains(string(request.Payload), "GET") {
				return transport.ErrOutcomeUnknown
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		o := observe(ctx, l, map[string]error{"silent": transport.ErrOutcomeUnknown})
		for range 1000 { // nor does a flood of notifications hasten it
			conn.Forge(transport.Notification{Key: name, Payload: resp3.AppendCommand(nil, "NOTIFY", "SET", "VALUE", "forger:1"), Timestamp: "1:0:x"})
			time.Sleep(ttl / 100)
		}
		if asked := conn.count(); asked < 20 || asked > 150 { // most of them from the watch, which reads the key, too
			t.Errorf("%d requests in 10 TTL", asked)
		}
		conn.set(nil)
		time.Sleep(ttl)
		cancel()
		await.Receive(o.ended)
		if got, want := o.String(), "[-!silent -]"; got != want {
			t.Errorf("shown %v, want %v", got, want)
		}
	})
}

// Each way to learn the holder is enough.
func TestLastHolderIsTheHolderNamedLast(t *testing.T) {
	for _, test := range []struct {
		name string
		hear func(ctx context.Context, n node)
	}{
		{"Acquire", func(ctx context.Context, n node) { _, _ = n.Acquire(ctx) }},
		{"TryAcquire", func(ctx context.Context, n node) { _, _ = n.TryAcquire(ctx) }},
		{"Holder", func(ctx context.Context, n node) { _, _ = n.Holder(ctx) }},
		{"Observe", func(ctx context.Context, n node) {
			for range n.Observe(ctx) {
				return
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
				if holder := b.LastHolder(); holder != (lease.Holder{}) {
					t.Errorf("before anything was heard: %+v", holder)
				}
				tenure := a.mustAcquire(t)
				ctx, cancel := context.WithTimeout(t.Context(), ttl)
				defer cancel()
				test.hear(ctx, b)
				if holder := b.LastHolder(); !holder.Held || holder.Name != "node-a" {
					t.Errorf("while node-a holds the lease: %+v", holder)
				}
				if err := tenure.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				own := b.mustAcquire(t)
				if holder := b.LastHolder(); holder != (lease.Holder{}) {
					t.Errorf("after it acquired the lease itself: %+v", holder)
				}
				_ = own.Release(t.Context())
			})
		})
	}
}

func TestObserveYieldsHoldersAndNotRenewals(t *testing.T) {
	for _, silence := range []bool{false, true} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
			observer := newNode(t, store, "observer", lease.Options{})
			observer.conn.Silence(silence)
			ctx, cancel := context.WithCancel(t.Context())
			var seen []string
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for holder, err := range observer.Observe(ctx) {
					if err != nil {
						t.Error(err)
					}
					seen = append(seen, holder.Name)
				}
			}()
			time.Sleep(3 * ttl)
			for _, n := range []node{a, b} {
				tenure := n.mustAcquire(t)
				time.Sleep(5 * ttl)
				if err := tenure.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * ttl)
			}
			cancel()
			await.Receive(ended)
			if got, want := len(seen), 5; got != want || seen[1] != "node-a" || seen[3] != "node-b" {
				t.Errorf("silence %v: seen %q", silence, seen)
			}
		})
	}
}
