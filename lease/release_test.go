package lease_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant18NothingIsSentAfterRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		// Release while a renewal is under way whose reply is lost.
		n.scripted("SET", always(transporttest.Fault{LoseReply: true}))
		time.Sleep(ttl/6 + 10*time.Millisecond)
		var sent atomic.Int64 // without KEYNOTIFY: watches belong to the client
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if !bytes.Contains(request.Payload, []byte("KEYNOTIFY")) {
				sent.Add(1)
			}
			return transporttest.Fault{}
		})
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sent.Load(); got != 1 {
			t.Errorf("the release took %d requests, want 1", got)
		}
		time.Sleep(10 * ttl)
		if got := sent.Load(); got != 1 {
			t.Errorf("%d requests were sent after the release", got-1)
		}
		if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
			t.Errorf("after the release: %+v, %v", holder, err)
		}
	})
}

func TestInvariant18ReleaseComesAfterARenewalThatIsBeingSent(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		send := hangRenewal(n)
		released := make(chan error, 1)
		go func() { released <- tenure.Release(context.Background()) }()
		synctest.Wait()
		close(send)
		if err := await.Receive(released); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
			t.Errorf("the renewal came after the release: %+v, %v", holder, err)
		}
	})
}

func TestInvariant20ReleasingALostTenureFreesNoOtherHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		old := a.mustAcquire(t)
		a.conn.Cut()
		successor := b.mustAcquire(t)
		a.conn.Restore()
		if err := old.Release(t.Context()); err != nil {
			t.Errorf("Release: %v; nothing of the tenure is left, so nil was expected", err)
		}
		time.Sleep(5 * ttl)
		mustToken(t, successor)
	})
}

func TestReleaseDoesNotWaitForLongOnceTheTTLIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.conn.Cut()
		await.Receive(tenure.Context().Done())
		began := time.Now()
		if err := tenure.Release(t.Context()); !errors.Is(err, transport.ErrNotSent) {
			t.Errorf("Release: %v, want ErrNotSent", err)
		}
		// GracePeriod, Margin on both sides of the TTL, and the time that the last request may
		// have taken to reach the store.
		if waited, want := time.Since(began), 3*ttl/10+ttl/6; waited.Round(time.Millisecond) != want.Round(time.Millisecond) {
			t.Errorf("it waited %v, %v were left of the TTL", waited, want)
		}
		began = time.Now()
		if err := tenure.Release(t.Context()); !errors.Is(err, transport.ErrNotSent) || time.Since(began) != ttl/6 {
			t.Errorf("another Release: %v after %v, want ErrNotSent after RequestTimeout", err, time.Since(began))
		}
		if !strings.Contains(tenure.Release(t.Context()).Error(), "expires within 0s, or within 2s of a restart of the store") {
			t.Error("it does not say until when the store may hold the lease")
		}
	})
}

// crashed returns a node with a tenure that is over, though the store has its lease: the store was
// down for longer than the TTL, and gives the lease its whole lifetime again.
func crashed(t *testing.T, options lease.Options, meanwhile func(*lease.Tenure)) (node, *transporttest.Store, *lease.Tenure) {
	t.Helper()
	var journal transporttest.Journal
	store := transporttest.StartDurable(t, &journal)
	n := newNode(t, store, "node-a", options)
	tenure := n.mustAcquire(t)
	store.Crash(0)
	n.conn.Restore() // when the store is up
	meanwhile(tenure)
	time.Sleep(5 * ttl)
	if err := store.Recover(); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return n, store, tenure
}

// The TTL that has passed on the local clock says nothing of a store that keeps its data.
func TestReleaseAfterTheTTLFreesTheLeaseInAStoreThatHasRestarted(t *testing.T) {
	for _, options := range []lease.Options{{}, {EndOnDisconnect: true}} {
		synctest.Test(t, func(t *testing.T) {
			n, store, tenure := crashed(t, options, func(*lease.Tenure) {})
			waiter := newNode(t, store, "node-b", lease.Options{})
			acquired := acquireInBackground(t.Context(), t, waiter)
			synctest.Wait()
			if holder, err := n.Holder(t.Context()); err != nil || holder.Name != "node-a" {
				t.Fatalf("the store holds %+v, %v", holder, err)
			}
			back := time.Now()
			if err := tenure.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
			successor := await.Receive(acquired)
			if waited := time.Since(back); waited > ttl/4 {
				t.Errorf("the successor waited %v", waited)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Errorf("another Release: %v", err)
			}
			time.Sleep(3 * ttl)
			mustToken(t, successor)
		})
	}
}

// A Release that failed while the store was down is made good by the next acquisition, which would
// otherwise wait for the process's own lease.
func TestAnAcquisitionFreesWhatAFailedReleaseLeft(t *testing.T) {
	for name, options := range map[string]lease.Options{"": {}, "with AcquireDelay": {AcquireDelay: ttl / 20}} {
		for way, acquire := range map[string]func(*lease.Lease, context.Context) (*lease.Tenure, error){
			"Acquire": (*lease.Lease).Acquire, "TryAcquire": (*lease.Lease).TryAcquire,
		} {
			t.Run(way+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n, _, former := crashed(t, options, func(tenure *lease.Tenure) {
						if err := tenure.Release(t.Context()); !errors.Is(err, transport.ErrNotSent) {
							t.Errorf("Release while the store is down: %v, want ErrNotSent", err)
						}
					})
					deleted := n.scripted("VDEL", harmless)
					back := time.Now()
					tenure, err := acquire(n.Lease, t.Context())
					if waited := time.Since(back); err != nil || waited > ttl/10 {
						t.Fatalf("acquired after %v, error %v", waited, err)
					}
					if next, before := mustToken(t, tenure), former.String(); !strings.Contains(before, "ended") || deleted() != 1 {
						t.Errorf("%d requests freed %s; the next token is %v", deleted(), before, next)
					}
				})
			})
		}
	}
}

// Invariant 19: what an attempt may have left stays an unknown outcome, however long ago it was: a
// store that comes back with its data has it again.
func TestInvariant19AnAttemptThatAStoreMayKeepIsUnknownAfterTheTTLToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var journal transporttest.Journal
		store := transporttest.StartDurable(t, &journal)
		n := newNode(t, store, "node-a", lease.Options{InstantFailover: true})
		n.conn.IgnoreWills(true) // else the next store releases what they would have released
		n.scripted("SET", func(int64) transporttest.Fault {
			time.AfterFunc(time.Millisecond, func() {
				store.Crash(0)
				n.conn.Restore()
			})
			return transporttest.Fault{LoseReply: true}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 6*ttl)
		defer cancel()
		if _, err := n.Acquire(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("Acquire: %v, want ErrOutcomeUnknown", err)
		}
		if err := store.Recover(); err != nil {
			t.Fatal(err)
		}
		if holder, err := n.Holder(t.Context()); err != nil || holder.Name != "node-a" {
			t.Errorf("the store holds %+v, %v; want what the attempt left", holder, err)
		}
	})
}

func mustDelete(t *testing.T, n node) {
	t.Helper()
	if deleted, err := n.client.Del(t.Context(), n.Name(), transport.DelOptions{}); !deleted || err != nil {
		t.Fatalf("deleted: %v, %v", deleted, err)
	}
}

// A holder learns at once that its lease was taken by force, or given to another holder.
func TestConfirmEndsATenureThatTheStoreDoesNotHave(t *testing.T) {
	for name, test := range map[string]struct {
		take func(*testing.T, node)
		want error
	}{
		"held":    {func(*testing.T, node) {}, nil},
		"deleted": {func(t *testing.T, n node) { mustDelete(t, n) }, lease.ErrDeleted},
		"taken": {func(t *testing.T, n node) {
			mustDelete(t, n)
			n.mustAcquire(t)
		}, lease.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{NoWatch: true})
				other := newNode(t, store, "other", lease.Options{NoWatch: true})
				tenure := n.mustAcquire(t)
				test.take(t, other)
				if err := context.Cause(tenure.Context()); err != nil {
					t.Fatalf("the tenure ended by itself: %v", err)
				}
				if err := tenure.Confirm(t.Context()); !errors.Is(err, test.want) || !errors.Is(context.Cause(tenure.Context()), test.want) {
					t.Errorf("Confirm: %v, and the tenure ended with %v; want %v", err, context.Cause(tenure.Context()), test.want)
				}
			})
		})
	}
}

// The request that acquires is under way when the caller gives up and closes the client.
func TestAnAcquisitionThatWasGivenUpIsFreedBeforeTheClientCloses(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n, other := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "other", lease.Options{})
		var lost atomic.Bool
		n.conn.SetFault(func(r transport.Request) transporttest.Fault {
			// The first request to free the lease is lost.
			lose := strings.Contains(string(r.Payload), "VDEL") && lost.CompareAndSwap(false, true)
			return transporttest.Fault{HoldRequest: ttl / 20, LoseRequest: lose}
		})
		ctx, cancel := context.WithTimeout(t.Context(), ttl/50)
		defer cancel()
		if _, err := n.Acquire(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Fatalf("Acquire: %v, want ErrOutcomeUnknown", err)
		}
		impatient, end := context.WithCancel(t.Context())
		end()
		if err := n.Settle(impatient); !errors.Is(err, context.Canceled) {
			t.Errorf("Settle with a context that has ended: %v", err)
		}
		if err := n.Settle(t.Context()); err != nil {
			t.Errorf("Settle: %v", err)
		}
		_ = n.client.Close()
		time.Sleep(ttl / 10) // what was under way has arrived
		if h, err := other.Holder(t.Context()); err != nil || h.Held {
			t.Errorf("the store holds %+v, %v", h, err)
		}
	})
}

