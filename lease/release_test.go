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

func TestReleaseIsNilOnlyWhenTheStoreHoldsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{NoWatch: true})
		other := newNode(t, store, "other", lease.Options{})
		tenure := n.mustAcquire(t)
		renewing := make(chan struct{}, 1)
		n.conn.SetFault(func(r transport.Request) transporttest.Fault {
			if strings.Contains(string(r.Payload), "VDEL") {
				return transporttest.Fault{LoseRequest: true}
			}
			select {
			case renewing <- struct{}{}:
			default:
			}
			// Within RequestTimeout, which is ttl/6.
			return transporttest.Fault{HoldRequest: ttl/6 - time.Millisecond, LoseReply: true}
		})
		await.Receive(renewing)
		time.Sleep(time.Millisecond)
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
			return
		}
		if h, err := other.Holder(t.Context()); err != nil || h.Held {
			t.Errorf("Release returned nil, and the store holds %+v, %v", h, err)
		}
	})
}

func TestInvariant18NothingIsSentAfterRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		// Release while a renewal is under way whose reply is lost.
		n.scripted("SET", always(transporttest.Fault{LoseReply: true}))
		time.Sleep(ttl/3 + 10*time.Millisecond)
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

func TestReleaseObeysItsContextWhileARenewalHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		send := hangRenewal(n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := tenure.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want DeadlineExceeded", err)
		}
		close(send)
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("another Release: %v", err)
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

func TestReleaseIsRepeatedUntilItsOutcomeIsKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		tries := n.scripted("VDEL", func(number int64) transporttest.Fault {
			return transporttest.Fault{LoseRequest: number <= 2}
		})
		if err := tenure.Release(t.Context()); err != nil || tries() != 3 {
			t.Errorf("after %d tries: %v", tries(), err)
		}
	})
}

func TestReleaseWithoutAConnectionSaysThatTheLeaseFreesItself(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.conn.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), ttl/4)
		defer cancel()
		err := tenure.Release(ctx)
		if !errors.Is(err, transport.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want ErrNotSent and DeadlineExceeded", err)
		}
		n.conn.Restore()
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("another Release: %v", err)
		}
		if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
			t.Errorf("after the release: %+v, %v", holder, err)
		}
	})
}

func TestReleaseDoesNotWaitOnceTheTTLIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.conn.Cut()
		await.Receive(tenure.Context().Done())
		began := time.Now()
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		// GracePeriod, Margin on both sides of the TTL, and the time that the last request may
		// have taken to reach the store.
		if waited, want := time.Since(began), 3*ttl/10+ttl/6; waited.Round(time.Millisecond) != want.Round(time.Millisecond) {
			t.Errorf("it waited %v, %v were left of the TTL", waited, want)
		}
		began = time.Now()
		if err := tenure.Release(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("another Release: %v after %v", err, time.Since(began))
		}
	})
}

func TestTheTokenIsRefusedAsSoonAsReleaseIsCalled(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.scripted("VDEL", always(transporttest.Fault{HoldReply: ttl / 10}))
		released := make(chan error, 1)
		go func() { released <- tenure.Release(context.Background()) }()
		synctest.Wait()
		if len(released) > 0 {
			t.Error("Release does not wait for the answer")
		}
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrReleased) {
			t.Errorf("Token during Release: %v, want ErrReleased", err)
		}
		if err := await.Receive(released); err != nil {
			t.Error(err)
		}
	})
}

func TestATenureThatIsReleasedAtOnceSparesTheStoreAWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		watches := n.scripted("KEYNOTIFY", harmless)
		const tenures = 50
		for range tenures {
			tenure := n.mustAcquire(t)
			synctest.Wait()
			if err := tenure.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := watches(); got > 0 {
			t.Errorf("%d tenures cost %d requests to watch", tenures, got)
		}
	})
}
