package lease_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// The connection dies at each time between two renewals, once with a store that has an
// identity and once with one that is asked over each new connection.
func TestInvariant52ATenureOutlivesAConnectionThatDiesWithoutAWord(t *testing.T) {
	for name, hidden := range map[string]bool{"a store with an identity": false, "a store without": true} {
		t.Run(name, func(t *testing.T) {
			for after := time.Duration(0); after < ttl; after += ttl / 40 {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					store.HideIdentity(hidden)
					n := newNode(t, store, "a", lease.Options{})
					tenure := n.mustAcquire(t)
					token, err := tenure.Token()
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(after)
					for range 3 {
						n.conn.Freeze()
						time.Sleep(3 * ttl)
						if got, err := tenure.Token(); err != nil || got != token || tenure.Err() != nil {
							t.Fatalf("the connection died %v after the begin: %v, %v; want %v", after, got, err, token)
						}
					}
					if err := tenure.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

func TestInvariant52AcquiringAndReleasingOutlastAConnectionThatDiesWithoutAWord(t *testing.T) {
	for name, options := range map[string]lease.Options{
		"at once":       {},
		"acquire delay": {AcquireDelay: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "a", options)
				ctx, cancel := context.WithTimeout(t.Context(), ttl)
				defer cancel()
				n.conn.Freeze()
				tenure, err := n.Acquire(ctx)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel = context.WithTimeout(t.Context(), ttl)
				defer cancel()
				n.conn.Freeze()
				began := time.Now()
				if err := tenure.Release(ctx); err != nil || time.Since(began) >= ttl/2 {
					t.Errorf("releasing takes %v: %v", time.Since(began), err)
				}
				if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
					t.Errorf("after the release: %+v, %v", holder, err)
				}
			})
		})
	}
}

func TestATenureThatEndsWithItsConnectionEndsWhenTheDeadOneIsGivenUp(t *testing.T) {
	for name, options := range map[string]lease.Options{
		"EndOnDisconnect": {EndOnDisconnect: true},
		"InstantFailover": {InstantFailover: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				tenure := func() *lease.Tenure {
					n := newNode(t, store, "a", options)
					defer n.conn.Freeze()
					return n.mustAcquire(t)
				}()
				select {
				case <-tenure.Done():
				case <-time.After(ttl):
					t.Fatal("it goes on")
				}
				if err := tenure.Err(); !errors.Is(err, lease.ErrConnectionLost) {
					t.Errorf("it ended with %v, want ErrConnectionLost", err)
				}
			})
		})
	}
}

func TestWhatALeaseSendsIsUrgent(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "a", lease.Options{NoWatch: true})
		var mu sync.Mutex
		urgent := make(map[string]int)
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			mu.Lock()
			defer mu.Unlock()
			verb := strings.Split(string(request.Payload), "\r\n")[2]
			if !request.Urgent {
				t.Errorf("%s of the lease waits behind others", verb)
			}
			urgent[verb]++
			return transporttest.Fault{}
		})
		tenure := n.mustAcquire(t)
		time.Sleep(3 * ttl)
		if err := tenure.Release(t.Context()); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if urgent["SET"] < 3 || urgent["VDEL"] != 1 {
			t.Errorf("%v", urgent)
		}
	})
}

// A request that its caller gave up is no reason to doubt the connection.
func TestACancelledAcquisitionProbesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "a", lease.Options{})
		lost := n.client.Lost()
		n.conn.Freeze()
		ctx, cancel := context.WithCancel(t.Context())
		acquiring := make(chan error, 1)
		go func() {
			_, err := n.TryAcquire(ctx)
			acquiring <- err
		}()
		synctest.Wait()
		cancel()
		await.Receive(acquiring)
		select {
		case <-lost:
			t.Error("the connection was given up at once")
		default:
		}
	})
}

// stalling is a connection on which nothing arrives for a while, and then all that was sent
// does, as TCP does after lost packets. Probe does what the MQTT connection does.
type stalling struct {
	*transporttest.Conn
	until atomic.Int64
}

func (s *stalling) stalls() time.Duration { return time.Until(time.Unix(0, s.until.Load())) }

func (s *stalling) Probe(within time.Duration) {
	within = max(within, 100*time.Millisecond)
	time.AfterFunc(within, func() {
		if s.stalls() > 0 {
			s.Cut()
			time.AfterFunc(50*time.Millisecond, s.Restore)
		}
	})
}

// A tenure that ends with its connection has no use for another one, so a connection that
// only stalls must not be given up while it may still save the tenure.
func TestInvariant52ATenureThatEndsWithItsConnectionOutlastsAStall(t *testing.T) {
	for kind, options := range map[string]lease.Options{"EndOnDisconnect": {EndOnDisconnect: true}, "InstantFailover": {InstantFailover: true}} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				conn := &stalling{Conn: store.Connect("node-a")}
				client, err := transport.NewClient(conn, transport.ClientOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = client.Close() }()
				options.TTL, options.Clock = 10*time.Second, lease.MonotonicClock()
				l, err := lease.New(client, name, options)
				if err != nil {
					t.Fatal(err)
				}
				tenure, err := l.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				conn.SetFault(func(transport.Request) transporttest.Fault {
					return transporttest.Fault{HoldRequest: max(conn.stalls(), 0)}
				})
				for range 30 {
					conn.until.Store(time.Now().Add(3500 * time.Millisecond).UnixNano())
					time.Sleep(3500*time.Millisecond + options.TTL)
					if err := tenure.Err(); err != nil {
						t.Fatalf("a stall of 3.5s ended it: %v", err)
					}
				}
			})
		})
	}
}
