package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestATenureThatEndsOnDisconnectRefusesItsTokenAtOnce(t *testing.T) {
	for _, test := range []struct {
		options lease.Options
		ends    bool
	}{
		{lease.Options{}, false}, {lease.Options{EndOnDisconnect: true}, true}, {lease.Options{InstantFailover: true}, true},
	} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n := newNode(t, store, "node-a", test.options)
			n.knowsStore(t)
			n.conn.Cut() // it begins on the connection that it watches
			time.AfterFunc(ttl/20, n.conn.Restore)
			tenure := n.mustAcquire(t)
			if left := tenure.Remaining(); test.ends && left != ttl-ttl/10 {
				t.Errorf("it begins with %v left", left)
			}
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
	}
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
				a, b := twoNodes(t, store, lease.Options{InstantFailover: true})
				a.mustAcquire(t)
				acquired := acquireInBackground(t.Context(), t, b)
				time.Sleep(ttl)
				b.conn.Cut() // the waiter sets another Will
				b.conn.Restore()
				time.Sleep(5*ttl + ttl/7)
				died, lost := time.Now(), b.client.Lost()
				test.die(a)
				successor := await.Receive(acquired)
				if got := time.Since(died); got > test.limit || test.limit > ttl && got < ttl/2 || closed.Is(lost) {
					t.Errorf("the successor holds after %v, want %v; over another connection: %t", got, test.limit, closed.Is(lost))
				}
				time.Sleep(5 * ttl)
				mustToken(t, successor)
			})
		})
	}
}

// silenceConn is a Conn to a broker that declares a connection dead after some silence.
type silenceConn struct {
	*transporttest.Conn
	silence time.Duration
	err     error
}

func (c silenceConn) SetWill(ctx context.Context, will []byte) (<-chan struct{}, time.Duration, error) {
	lost, _, err := c.Conn.SetWill(ctx, will)
	return lost, c.silence, errors.Join(err, c.err)
}

func TestInstantFailoverNeedsADeadlineBeforeTheBrokersTimeout(t *testing.T) {
	for _, test := range []struct {
		name    string
		ttl     time.Duration
		silence time.Duration
		refused error  // by the broker
		want    string // in the error; empty: it works
	}{
		{"just in time", ttl, ttl, nil, ""},
		{"too early", ttl, ttl - time.Millisecond, nil, "make TTL at most 1.999s, or the client's KeepAlive longer"},
		{"the broker allows no wills, so the TTL decides", ttl, 0, &transport.ConnectionError{Code: 0x87}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				conn := silenceConn{store.Connect("node-a"), test.silence, test.refused}
				n := nodeOn(t, conn, transport.ClientOptions{}, lease.Options{TTL: test.ttl, InstantFailover: true})
				_, err := n.Acquire(t.Context())
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Errorf("Acquire: %v, want %q", err, test.want)
				}
			})
		})
	}
}

func TestOnWaitingGetsAMissingConnectionForInstantFailover(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var waiting waitingCauses
		n := newNode(t, store, "node-a", lease.Options{InstantFailover: true, OnWaiting: waiting.hear})
		n.conn.Cut()
		acquired := acquireInBackground(t.Context(), t, n)
		time.Sleep(ttl)
		if causes := waiting.all(); len(causes) != 1 || !errors.Is(causes[0], transport.ErrNotSent) {
			t.Errorf("told %v, want ErrNotSent", causes)
		}
		n.conn.Restore()
		await.Receive(acquired)
	})
}

// The connection dies at each time between two renewals, once with a store that has an
// identity and once with one that is asked over each new connection.
func TestInvariant52ATenureOutlivesAHalfOpenConnection(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		for after := time.Duration(0); after < ttl; after += ttl / 40 {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				store.HideIdentity(hidden)
				n := newNode(t, store, "a", lease.Options{})
				tenure := n.mustAcquire(t)
				token := mustToken(t, tenure)
				time.Sleep(after)
				for range 3 {
					n.conn.Freeze()
					time.Sleep(3 * ttl)
					if got, err := tenure.Token(); err != nil || got != token || context.Cause(tenure.Context()) != nil {
						t.Fatalf("identity hidden %t, the connection died %v after the begin: %v, %v; want %v", hidden, after, got, err, token)
					}
				}
				mustRelease(t, tenure)
			})
		}
	}
}

// A store that takes over from one that fell silent releases a lease with instant failover half of the TTL later.
func TestInvariant62ATenureThatEndsWithItsConnectionEndsInTimeOnASilentOne(t *testing.T) {
	for _, test := range []struct {
		options lease.Options
		limit   time.Duration
	}{{lease.Options{InstantFailover: true}, ttl / 2}, {lease.Options{EndOnDisconnect: true}, ttl}} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			for i := range 40 {
				n := newNode(t, store, fmt.Sprint("node-", i), lease.Options{})
				tenure := mustTryAcquire(t, n.another(t, fmt.Sprint(i), test.options))
				time.Sleep(ttl + time.Duration(i)*ttl/100)
				n.conn.Freeze()
				silent := time.Now()
				await.Receive(tenure.Context().Done())
				if took := time.Since(silent); took > test.limit || !errors.Is(context.Cause(tenure.Context()), lease.ErrConnectionLost) {
					t.Errorf("it ended %v after its connection fell silent, with %v", took, context.Cause(tenure.Context()))
				}
			}
		})
	}
}

func TestWhatALeaseSendsIsUrgent(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "a", lease.Options{NoWatch: true})
		var sets, deletions, others int
		n.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			switch {
			case request.Binding.Urgent && hasVerb(request, "SET"):
				sets++
			case request.Binding.Urgent && hasVerb(request, "VDEL"):
				deletions++
			default:
				others++
			}
			return transporttest.Fault{}
		})
		tenure := n.mustAcquire(t)
		time.Sleep(3 * ttl)
		mustRelease(t, tenure)
		if sets < 3 || deletions != 1 || others > 0 {
			t.Errorf("%d SETs and %d VDELs are urgent; others %d", sets, deletions, others)
		}
	})
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
				holder, waiter := twoNodes(t, store, test.options)
				tenure := holder.mustAcquire(t)
				acquired := acquireInBackground(t.Context(), t, waiter)
				time.Sleep(5 * ttl)
				waiter.conn.Freeze()
				began := time.Now()
				mustRelease(t, tenure)
				await.Receive(acquired)
				if took := time.Since(began); took > test.limit {
					t.Errorf("it acquired the lease %v after its connection fell silent and the lease was released", took)
				}
			})
		})
	}
}
