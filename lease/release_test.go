package lease_test

import (
	"context"
	"errors"
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
		sent := n.counted()
		mustRelease(t, tenure)
		time.Sleep(10 * ttl)
		if sets, gets, deletions := sent("SET"), sent("GET"), sent("VDEL"); sets+gets > 0 || deletions != 1 {
			t.Errorf("since the release %d SETs, %d GETs and %d VDELs were sent, want one VDEL", sets, gets, deletions)
		}
		mustBeFree(t, n)
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
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrReleased) || len(released) > 0 {
			t.Errorf("Token during Release: %v, want ErrReleased; it has returned: %t", err, len(released) > 0)
		}
		close(send)
		if err := await.Receive(released); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		mustBeFree(t, n)
	})
}

func TestInvariant20ReleasingALostTenureFreesNoOtherHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := twoNodes(t, store, lease.Options{})
		old := a.mustAcquire(t)
		a.conn.Cut()
		successor := b.mustAcquire(t)
		a.conn.Restore()
		mustRelease(t, old) // nothing of the tenure is left
		time.Sleep(5 * ttl)
		mustToken(t, successor)
	})
}

// crashed returns a node with a tenure that is over, though the store has its lease: the store was
// down for longer than the TTL, and gives the lease its whole lifetime again.
func crashed(t *testing.T, options lease.Options, meanwhile func(*lease.Tenure)) (node, *transporttest.Store, *lease.Tenure) {
	t.Helper()
	store := transporttest.StartDurable(t, new(transporttest.Journal))
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

// A Release that failed while the store was down is made good by the next acquisition, which would
// otherwise wait for the process's own lease.
func TestAnAcquisitionFreesWhatAFailedReleaseLeft(t *testing.T) {
	for _, delay := range []time.Duration{0, ttl / 20} {
		for way, acquire := range map[string]func(*lease.Lease, context.Context) (*lease.Tenure, error){
			"Acquire": (*lease.Lease).Acquire, "TryAcquire": (*lease.Lease).TryAcquire,
		} {
			synctest.Test(t, func(t *testing.T) {
				n, _, _ := crashed(t, lease.Options{AcquireDelay: delay}, func(tenure *lease.Tenure) {
					if err := tenure.Release(t.Context()); !errors.Is(err, transport.ErrNotSent) {
						t.Errorf("Release while the store is down: %v, want ErrNotSent", err)
					}
				})
				deleted := n.scripted("VDEL", harmless)
				back := time.Now()
				_, err := acquire(n.Lease, t.Context())
				if waited := time.Since(back); err != nil || waited > ttl/10 || deleted() != 1 {
					t.Fatalf("%s after %v with %d requests to free it, error %v", way, waited, deleted(), err)
				}
			})
		}
	}
}

// The request that acquires is under way when the caller gives up and closes the client.
func TestInvariant19AnAcquisitionThatWasGivenUpIsFreedBeforeTheClientCloses(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n, other := twoNodes(t, store, lease.Options{})
		var lost atomic.Bool
		n.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			// The first request to free the lease is lost.
			lose := hasVerb(request, "VDEL") && lost.CompareAndSwap(false, true)
			return transporttest.Fault{HoldRequest: ttl / 20, LoseRequest: lose}
		})
		ctx, cancel := context.WithTimeout(t.Context(), ttl/50)
		defer cancel()
		if _, err := n.Acquire(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Fatalf("Acquire: %v, want ErrOutcomeUnknown", err)
		}
		if err := n.AwaitReleases(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("AwaitReleases with a context that has ended: %v", err)
		}
		if err := n.AwaitReleases(t.Context()); err != nil {
			t.Errorf("AwaitReleases: %v", err)
		}
		_ = n.client.Close()
		time.Sleep(ttl / 10) // what was under way has arrived
		mustBeFree(t, other)
	})
}

// A holder learns at once that its lease was taken by force, or given to another holder.
func TestConfirmEndsATenureThatTheStoreDoesNotHave(t *testing.T) {
	remove := func(t *testing.T, other node) {
		if deleted, err := other.client.Del(t.Context(), name, transport.DelOptions{}); !deleted || err != nil {
			t.Fatalf("deleted: %v, %v", deleted, err)
		}
	}
	for name, test := range map[string]struct {
		take      func(t *testing.T, n, other node)
		want, end error
	}{
		"held":    {func(*testing.T, node, node) {}, nil, nil},
		"deleted": {func(t *testing.T, _, other node) { remove(t, other) }, lease.ErrDeleted, lease.ErrDeleted},
		"taken": {func(t *testing.T, _, other node) {
			remove(t, other)
			other.mustAcquire(t)
		}, lease.ErrLost, lease.ErrLost},
		"not answered": {func(_ *testing.T, n, _ node) {
			n.scripted("GET", always(transporttest.Fault{LoseReply: true}))
		}, transport.ErrOutcomeUnknown, nil},
	} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n, other := twoNodes(t, store, lease.Options{NoWatch: true})
			tenure := n.mustAcquire(t)
			test.take(t, n, other)
			before, err := context.Cause(tenure.Context()), tenure.Confirm(t.Context())
			if cause := context.Cause(tenure.Context()); before != nil || !errors.Is(err, test.want) || !errors.Is(cause, test.end) {
				t.Errorf("%s: Confirm: %v, and the tenure ended with %v and then %v; want %v", name, err, before, cause, test.want)
			}
		})
	}
}
