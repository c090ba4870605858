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

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestATenureThatEndsOnDisconnectRefusesItsTokenAtOnce(t *testing.T) {
	for _, test := range []struct {
		name    string
		options lease.Options
		ends    bool
	}{
		{"by default it does not", lease.Options{}, false},
		{"with EndOnDisconnect", lease.Options{EndOnDisconnect: true}, true},
		{"with InstantFailover", lease.Options{InstantFailover: true}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", test.options)
				tenure := n.mustAcquire(t)
				time.Sleep(5 * ttl)
				mustToken(t, tenure)
				n.conn.Cut()
				// No other goroutine has run since.
				if _, err := tenure.Token(); errors.Is(err, lease.ErrConnectionLost) != test.ends {
					t.Errorf("Token: %v; is it over: %t", err, test.ends)
				}
				n.conn.Restore()
				synctest.Wait()
				if err := context.Cause(tenure.Context()); errors.Is(err, lease.ErrConnectionLost) != test.ends {
					t.Errorf("cause %v; is it over: %t", err, test.ends)
				}
			})
		})
	}
}

func TestTheContextEndsWithTheConnectionWithoutACallOfToken(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{EndOnDisconnect: true})
		tenure := n.mustAcquire(t)
		time.Sleep(ttl + ttl/30) // between two looks at the clock
		synctest.Wait()
		cut := time.Now()
		n.conn.Cut()
		await.Receive(tenure.Context().Done())
		if waited := time.Since(cut); waited > 0 || !errors.Is(context.Cause(tenure.Context()), lease.ErrConnectionLost) {
			t.Errorf("it ended after %v with %v", waited, context.Cause(tenure.Context()))
		}
	})
}

func TestInstantFailoverDoesNotWaitForTheTTL(t *testing.T) {
	for _, test := range []struct {
		name  string
		die   func(node)
		limit time.Duration
	}{
		{"the process is killed", func(n node) { n.conn.Cut() }, 10 * time.Millisecond},
		{"the broker knows no wills", func(n node) { n.conn.IgnoreWills(true); n.conn.Cut() }, ttl + ttl/10},
		{"the client is closed, which leaves the lease to its TTL", func(n node) { _ = n.client.Close() }, ttl + ttl/10},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				options := lease.Options{InstantFailover: true}
				a, b := newNode(t, store, "node-a", options), newNode(t, store, "node-b", options)
				a.mustAcquire(t)
				acquired := acquireInBackground(t.Context(), t, b)
				time.Sleep(5*ttl + ttl/7)
				died := time.Now()
				test.die(a)
				successor := await.Receive(acquired)
				if got := time.Since(died); got > test.limit || test.limit > ttl && got < ttl/2 {
					t.Errorf("the successor holds after %v, want %v", got, test.limit)
				}
				time.Sleep(5 * ttl)
				mustToken(t, successor)
			})
		})
	}
}

func TestAWaiterSetsAnotherWillAfterALostConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		options := lease.Options{InstantFailover: true}
		a, b := newNode(t, store, "node-a", options), newNode(t, store, "node-b", options)
		c := newNode(t, store, "node-c", options)
		a.mustAcquire(t)
		waiting := acquireInBackground(t.Context(), t, b)
		time.Sleep(ttl)
		b.conn.Cut()
		b.conn.Restore()
		time.Sleep(ttl)
		connection := b.client.Lost()
		a.conn.Cut()
		await.Receive(waiting)
		select {
		case <-connection:
			t.Error("it had to make another connection first")
		default:
		}
		next := acquireInBackground(t.Context(), t, c)
		time.Sleep(ttl)
		died := time.Now()
		b.conn.Cut()
		await.Receive(next)
		if got := time.Since(died); got > 10*time.Millisecond {
			t.Errorf("the successor of the waiter holds after %v", got)
		}
	})
}

func TestThereIsOneLeaseWithInstantFailoverForEachClient(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		options := lease.Options{TTL: ttl, InstantFailover: true}
		n := newNode(t, store, "node-a", options)
		other, err := lease.New(n.client, "press-8/active", options)
		if err != nil {
			t.Fatal(err)
		}
		tenure := n.mustAcquire(t)
		if _, err := other.Acquire(t.Context()); !errors.Is(err, transport.ErrWillInUse) || !strings.Contains(err.Error(), "dial another client") {
			t.Errorf("a second one: %v, want ErrWillInUse", err)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := other.Acquire(t.Context()); err != nil {
			t.Errorf("after the first was released: %v", err)
		}
	})
}

func TestAHeldLeaseCostsTryAcquireNoNewConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{InstantFailover: true})
		a.mustAcquire(t)
		lost := b.client.Lost()
		if _, err := b.TryAcquire(t.Context()); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("TryAcquire: %v, want ErrHeld", err)
		}
		select {
		case <-lost:
			t.Error("the connection was replaced")
		default:
		}
	})
}

func TestInstantFailoverNeedsADeadlineBeforeTheBrokersTimeout(t *testing.T) {
	for _, test := range []struct {
		name    string
		ttl     time.Duration
		silence time.Duration
		refused error  // by the broker
		want    string // in the error; empty: it works
	}{
		{"it never does", ttl, 0, nil, ""},
		{"just in time", ttl, ttl, nil, ""},
		{"too early", ttl, ttl - time.Millisecond, nil, "make TTL at most 1.999s, or the client's KeepAlive at least 2s"},
		{"too early for any keep-alive", 48 * time.Hour, 7500 * time.Millisecond, nil, "KeepAlive at least 32h0m0s, which can be 18h12m15s at most"},
		{"the broker allows no wills, so the TTL decides", ttl, 0, &transport.ConnectionError{Code: 0x87}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				conn := silenceConn{store.Connect("node-a"), test.silence, test.refused}
				client, err := transport.NewClient(conn, transport.ClientOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				l, err := lease.New(client, name, lease.Options{TTL: test.ttl, InstantFailover: true})
				if err != nil {
					t.Fatal(err)
				}
				_, err = l.Acquire(t.Context())
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Errorf("Acquire: %v, want %q", err, test.want)
				}
			})
		})
	}
}

// The connection dies at each time between two renewals, once with a store that has an
// identity and once with one that is asked over each new connection.
func TestInvariant52ATenureOutlivesAHalfOpenConnection(t *testing.T) {
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
						if got, err := tenure.Token(); err != nil || got != token || context.Cause(tenure.Context()) != nil {
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

func TestInvariant52AcquiringAndReleasingOutlastAHalfOpenConnection(t *testing.T) {
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

// A store that takes over from one that fell silent releases the lease half of the TTL later.
func TestInvariant62ATenureWithInstantFailoverEndsWithinHalfOfItsTTLOnASilentConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		for i := range 40 {
			n := newNode(t, store, fmt.Sprint("node-", i), lease.Options{InstantFailover: true})
			tenure := n.mustAcquire(t)
			time.Sleep(ttl + time.Duration(i)*ttl/100)
			n.conn.Freeze()
			silent := time.Now()
			await.Receive(tenure.Context().Done())
			if took := time.Since(silent); took > ttl/2 {
				t.Errorf("it ended %v after its connection fell silent", took)
			}
		}
	})
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

// A tenure that ends with its connection cannot use another one. So a connection that only
// stalls is kept as long as it may still save the tenure. With instant failover that is half of the TTL:
// after that another store may have released the lease.
func TestInvariant52ATenureThatEndsWithItsConnectionOutlastsAStall(t *testing.T) {
	for _, test := range []struct {
		name    string
		options lease.Options
		stall   time.Duration
	}{
		{"EndOnDisconnect", lease.Options{EndOnDisconnect: true}, 3500 * time.Millisecond},
		{"InstantFailover", lease.Options{InstantFailover: true}, 3300 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := test.options
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				conn := &stalling{Conn: store.Connect("node-a")}
				client, err := transport.NewClient(conn, transport.ClientOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = client.Close() }()
				options.TTL = 10 * time.Second
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
					conn.until.Store(time.Now().Add(test.stall).UnixNano())
					time.Sleep(test.stall + options.TTL)
					if err := context.Cause(tenure.Context()); err != nil {
						t.Fatalf("a stall of %v ended it: %v", test.stall, err)
					}
				}
			})
		})
	}
}

// A waiter that hears nothing of a healthy holder would otherwise wait for the holder's whole TTL first.
func TestInvariant52AWaiterGivesUpAConnectionThatFellSilentBeforeTheTTLIsOver(t *testing.T) {
	for _, test := range []struct {
		name    string
		options lease.Options
		watches bool
		limit   time.Duration
	}{
		{"instant failover", lease.Options{InstantFailover: true}, true, ttl * 3 / 4},
		{"the TTL decides", lease.Options{}, true, ttl * 3 / 4},
		{"instant failover, no notifications", lease.Options{InstantFailover: true}, false, ttl / 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				if !test.watches {
					store.Authorize(allButWatches)
				}
				holder := newNode(t, store, "node-a", test.options)
				tenure := holder.mustAcquire(t)
				waiter := newNode(t, store, "node-b", test.options)
				acquired := acquireInBackground(t.Context(), t, waiter)
				time.Sleep(5 * ttl)
				waiter.conn.Freeze()
				began := time.Now()
				if err := tenure.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				await.Receive(acquired)
				if took := time.Since(began); took > test.limit {
					t.Errorf("it acquired the lease %v after its connection fell silent and the lease was released", took)
				}
			})
		})
	}
}
