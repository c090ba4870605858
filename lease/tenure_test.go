package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func mustToken(t *testing.T, tenure *lease.Tenure) hlc.Token {
	t.Helper()
	token, err := tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestInvariant1DeadlineCountsFromTheSendingOfTheRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Margin: 200 * time.Millisecond})
		const slow = 300 * time.Millisecond // within RequestTimeout
		n.scripted("SET", always(transporttest.Fault{HoldReply: slow}))
		tenure := n.mustAcquire(t)
		if got, want := tenure.Remaining(), ttl-200*time.Millisecond-slow; got != want {
			t.Errorf("after a reply that took %v: remaining %v, want %v", slow, got, want)
		}
		// The same for renewals, of which there are several in the next seconds.
		limit := tenure.Remaining()
		for range 5000 {
			time.Sleep(time.Millisecond)
			if got := tenure.Remaining(); got > limit {
				t.Fatalf("after a renewal whose reply took %v: remaining %v, at most %v can be known", slow, got, limit)
			}
		}
	})
}

func TestInvariants2And3TheDeadlineIsCheckedInsideTheCallAndCountsSuspendedTime(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var suspend skewed
		n := newNode(t, store, "node-a", lease.Options{Clock: suspend.clock()})
		tenure := n.mustAcquire(t)
		synctest.Wait()
		mustToken(t, tenure)
		suspend.jump(time.Hour)
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token after the suspend: %v, want ErrDeadlinePassed", err)
		}
		if got := tenure.Remaining(); got != 0 {
			t.Errorf("Remaining after the suspend: %v, want 0", got)
		}
		if tenure.Context().Err() == nil {
			t.Error("the context is alive after Token said that the tenure is over")
		}
	})
}

func TestInvariant3TheContextEndsSoonAfterTheMachineWokeUp(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var suspend skewed
		options := lease.Options{Clock: suspend.clock(), GracePeriod: ttl / 10}
		tenure := newNode(t, store, "node-a", options).mustAcquire(t)
		time.Sleep(ttl / 20) // long before anything is due
		suspend.jump(time.Hour)
		woke := time.Now()
		await.Receive(tenure.Done())
		if got, limit := time.Since(woke), options.GracePeriod/2; got > limit {
			t.Errorf("the context ended %v after the machine woke up, want at most %v", got, limit)
		}
	})
}

func TestTheRenewalsOfManyLeasesAreSpreadFromTheFirstOn(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		const leases, slices = 500, 10
		every := ttl / 3
		for i := range leases {
			l, err := lease.New(n.client, fmt.Sprintf("%s/%d", name, i), lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		acquired := time.Now()
		var renewals [slices]atomic.Int64
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if slice := int(time.Since(acquired) * slices / every); slice < slices && request.Timestamp != "" {
				renewals[slice].Add(1)
			}
			return transporttest.Fault{}
		})
		time.Sleep(every)
		for slice := slices / 2; slice < slices; slice++ {
			if got, fair := renewals[slice].Load(), int64(leases*2/slices); got > 2*fair {
				t.Errorf("%d of %d first renewals fall into the slice %d of %d; a fair share is %d", got, leases, slice, slices, fair)
			}
		}
	})
}

func TestTheCauseOfAPassedDeadlineTellsOfTheLastRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		store.Authorize(func(_ string, verb statestore.Verb, _ string) bool { return verb != statestore.VerbSet })
		await.Receive(tenure.Done())
		if err := tenure.Err(); !errors.Is(err, lease.ErrDeadlinePassed) || !strings.Contains(err.Error(), "not authorized") {
			t.Errorf("cause %v, want ErrDeadlinePassed and the refusal", err)
		}
	})
}

func TestInvariant24ATokenThatIsRefusedHereLeavesNothingUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.scripted("SET", always(transporttest.Fault{LoseReply: true}))
		time.Sleep(ttl)
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) || errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("Token: %v; want ErrDeadlinePassed, and not the ErrOutcomeUnknown of the last renewal", err)
		}
	})
}

func TestInvariant4AStepOfTheWallClockMovesNeitherDeadlineNorRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		conn := store.Connect("node-a")
		var step atomic.Int64
		client, err := transport.NewClient(conn, transport.ClientOptions{
			Now: func() time.Time { return time.Now().Add(time.Duration(step.Load())) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		l, err := lease.New(client, name, lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := tenure.Remaining()
		step.Store(int64(-time.Hour))
		if got := tenure.Remaining(); got != before {
			t.Errorf("the step changed what remains from %v to %v", before, got)
		}
		time.Sleep(10 * ttl)
		mustToken(t, tenure)
	})
}

func TestInvariant5AReplyPastTheDeadlineRevivesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.scripted("SET", always(transporttest.Fault{HoldReply: ttl}))
		await.Receive(tenure.Context().Done())
		time.Sleep(ttl) // the deadline passes and late replies come in
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token: %v, want ErrDeadlinePassed", err)
		}
		n.conn.SetFault(nil)
		time.Sleep(5 * ttl)
		if tenure.Remaining() != 0 {
			t.Error("the tenure came back")
		}
	})
}

func TestInvariant5ARenewalAnsweredAfterTheProcessStoodStillRevivesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var stop skewed
		n := newNode(t, store, "node-a", lease.Options{Clock: stop.clock()})
		tenure := n.mustAcquire(t)
		renewed := n.scripted("SET", func(number int64) transporttest.Fault {
			if number == 1 {
				// Past the deadline of the tenure, but not past the one that the
				// renewal, counted from its sending, would set.
				stop.jump(3 * ttl / 4)
			}
			return transporttest.Fault{}
		})
		time.Sleep(ttl / 3)
		if renewed() == 0 {
			t.Fatal("no renewal was sent")
		}
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token: %v, want ErrDeadlinePassed: another may have held the lease in between", err)
		}
	})
}

func TestInvariant6ALostReplyKeepsTheTenureAndItsToken(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault transporttest.Fault
	}{
		{"the request is lost", transporttest.Fault{LoseRequest: true}},
		{"the reply is lost", transporttest.Fault{LoseReply: true}},
		{"the reply is late", transporttest.Fault{HoldReply: ttl}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				tenure := n.mustAcquire(t)
				token := mustToken(t, tenure)
				renewals := n.scripted("SET", func(number int64) transporttest.Fault {
					if number%2 == 1 {
						return test.fault
					}
					return transporttest.Fault{}
				})
				time.Sleep(20 * ttl)
				if got := mustToken(t, tenure); got != token {
					t.Errorf("the token changed from %v to %v", token, got)
				}
				if got := renewals(); got < 20 {
					t.Errorf("%d attempts in 20 TTL", got)
				}
			})
		})
	}
}

func TestInvariant6ARefusedRenewalEndsTheTenureAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{NoWatch: true}) // or a notification would be quicker
		tenure := n.mustAcquire(t)
		// Somebody takes the lease away by force.
		operator, _ := store.Client(t, "operator", transport.ClientOptions{})
		if _, err := operator.Set(t.Context(), name, []byte("operator:1"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		await.Receive(tenure.Context().Done())
		if waited := time.Since(began); waited > ttl/3 {
			t.Errorf("noticed after %v, want by the next renewal", waited)
		}
		if err := tenure.Err(); !errors.Is(err, lease.ErrLost) {
			t.Errorf("cause %v, want ErrLost", err)
		}
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrLost) {
			t.Errorf("Token: %v, want ErrLost", err)
		}
	})
}

func TestInvariant24ARetryOfARenewalIsANewRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		n.mustAcquire(t)
		var sent []string
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if request.Timestamp == "" { // every SET has one
				return transporttest.Fault{}
			}
			sent = append(sent, request.Timestamp)
			return transporttest.Fault{LoseReply: len(sent) == 1}
		})
		var applied []string
		store.Tap(func(a transporttest.Applied) {
			if a.Request.Timestamp != "" && !a.Again {
				applied = append(applied, a.Request.Timestamp)
			}
		})
		time.Sleep(ttl)
		synctest.Wait()
		store.Tap(nil)
		if len(sent) < 2 || sent[0] == sent[1] || !slices.Equal(sent, applied) {
			t.Errorf("sent %q, and the store applied as new %q", sent, applied)
		}
	})
}

func TestInvariant43NothingWaitsForARenewalThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		send := hangRenewal(n)
		defer close(send)
		began := time.Now()
		mustToken(t, tenure)
		if left := tenure.Remaining(); left <= 0 || tenure.Err() != nil {
			t.Errorf("%v are left; %v", left, tenure.Err())
		}
		tenure.StopRenewing()
		tenure.FencedOut(errors.New("a newer token was seen"))
		await.Receive(tenure.Done())
		if waited := time.Since(began); waited > 0 {
			t.Errorf("that took %v", waited)
		}
	})
}

func TestInvariant8TheContextEndsBeforeTheDeadlineAndThatBeforeTheStoresExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Margin: 200 * time.Millisecond, GracePeriod: 300 * time.Millisecond})
		tenure := n.mustAcquire(t)
		token := mustToken(t, tenure)
		n.conn.Cut()
		acquired := time.Now()
		await.Receive(tenure.Context().Done())
		if got, want := time.Since(acquired), ttl-500*time.Millisecond; got != want {
			t.Errorf("the context ended after %v, want %v", got, want)
		}
		if err := tenure.Err(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("cause %v, want ErrDeadlinePassed", err)
		}
		if got := mustToken(t, tenure); got != token {
			t.Errorf("token %v while the work winds up, want %v", got, token)
		}
		time.Sleep(300*time.Millisecond - time.Nanosecond)
		mustToken(t, tenure)
		time.Sleep(time.Nanosecond)
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token at the deadline: %v, want ErrDeadlinePassed", err)
		}
		other, _ := store.Client(t, "other", transport.ClientOptions{})
		if entry, err := other.Get(t.Context(), name); err != nil || !entry.Exists {
			t.Errorf("the store gave the lease away at the tenure's deadline: %+v, %v", entry, err)
		}
	})
}

func TestInvariant9ATenureEndsOnceWithItsFirstCause(t *testing.T) {
	evidence := errors.New("the resource has seen a newer token")
	for _, test := range []struct {
		name string
		end  func(*lease.Tenure, node)
		want error
	}{
		{"released", func(tenure *lease.Tenure, _ node) { _ = tenure.Release(context.Background()) }, lease.ErrReleased},
		{"fenced out", func(tenure *lease.Tenure, _ node) { tenure.FencedOut(evidence) }, lease.ErrFencedOut},
		{"the client closes", func(_ *lease.Tenure, n node) { _ = n.client.Close() }, transport.ErrClosed},
		{"the deadline passes", func(_ *lease.Tenure, n node) { n.conn.Cut(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
		{"the renewals stop", func(tenure *lease.Tenure, _ node) { tenure.StopRenewing(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				tenure := n.mustAcquire(t)
				test.end(tenure, n)
				synctest.Wait()
				for _, again := range []func(){
					func() {},
					func() { _ = tenure.Release(t.Context()) },
					func() { tenure.FencedOut(evidence) },
				} {
					again()
					if err := context.Cause(tenure.Context()); !errors.Is(err, test.want) {
						t.Fatalf("cause %v, want %v", err, test.want)
					}
					if _, err := tenure.Token(); !errors.Is(err, test.want) {
						t.Fatalf("Token: %v, want %v", err, test.want)
					}
				}
			})
		})
	}
}

func TestInvariants11And12TokensRiseFromTenureToTenureAndStayWithinOne(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		nodes := []node{newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})}
		var last hlc.Token
		for i := range 10 {
			tenure := nodes[i%2].mustAcquire(t)
			token := mustToken(t, tenure)
			if token.Compare(last) <= 0 {
				t.Fatalf("tenure %d has token %v after %v", i, token, last)
			}
			last = token
			time.Sleep(3 * ttl) // many renewals
			if got := mustToken(t, tenure); got != token {
				t.Fatalf("renewals changed the token from %v to %v", token, got)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
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
		var sent atomic.Int64 // without KEYNOTIFY: who watches a key is no business of a tenure's
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

// hangRenewal returns when a renewal has left the tenure, and keeps it from
// reaching the store until send is closed.
func hangRenewal(n node) (send chan<- struct{}) {
	sending, hold := make(chan struct{}), make(chan struct{})
	n.scripted("SET", func(number int64) transporttest.Fault {
		if number == 1 {
			close(sending)
			await.Receive(hold)
		}
		return transporttest.Fault{}
	})
	await.Receive(sending)
	return hold
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

func TestInvariant20ReleasingALostTenureFreesNobodyElse(t *testing.T) {
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

func TestReleaseWaitsForNobodyOnceTheTTLIsOver(t *testing.T) {
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

func TestInvariant42ClosingTheClientAtAnyMomentLeavesNothing(t *testing.T) {
	// synctest.Test fails if a goroutine of the bubble is left.
	for _, after := range []time.Duration{0, ttl / 3, ttl - ttl/5, ttl} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				waiting := newNode(t, store, "node-b", lease.Options{})
				tenure := n.mustAcquire(t)
				ended := make(chan error, 1)
				go func() {
					_, err := waiting.Acquire(t.Context())
					ended <- err
				}()
				n.scripted("SET", always(transporttest.Fault{LoseReply: true}))
				time.Sleep(after)
				for _, closing := range []node{n, waiting} {
					if err := closing.client.Close(); err != nil {
						t.Error(err)
					}
				}
				await.Receive(tenure.Context().Done())
				if err := await.Receive(ended); after < ttl && !errors.Is(err, transport.ErrClosed) {
					t.Errorf("Acquire: %v, want ErrClosed", err)
				}
			})
		})
	}
}

func TestStopRenewingGivesUpTheRenewalUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		synctest.Wait()
		const late = ttl / 10
		renewals := n.scripted("SET", always(transporttest.Fault{HoldReply: late}))
		for renewals() == 0 {
			time.Sleep(time.Millisecond)
		}
		tenure.StopRenewing()
		left := tenure.Remaining()
		time.Sleep(2 * late)
		if got, want := tenure.Remaining(), left-2*late; got != want {
			t.Errorf("%v are left, want %v", got, want)
		}
		time.Sleep(ttl)
		if err := tenure.Err(); !errors.Is(err, lease.ErrDeadlinePassed) || renewals() != 1 {
			t.Errorf("after %d renewals: %v", renewals(), err)
		}
	})
}

func TestARenewalThatIsDueWhenTheTenureStopsRenewingIsNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{RenewEvery: ttl / 10})
		tenure := n.mustAcquire(t)
		time.Sleep(ttl / 30) // by then it follows its key, and has not been renewed
		synctest.Wait()
		var renewals atomic.Int64
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if request.Timestamp == "" { // every SET has one, and the others here are GETs
				return transporttest.Fault{HoldReply: ttl / 8}
			}
			renewals.Add(1)
			return transporttest.Fault{}
		})
		// It asks whether this is true, and meanwhile the renewal falls due.
		n.conn.Forge(transport.Notification{Key: name, Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"), Timestamp: "1:0:StateStore"})
		time.Sleep(ttl / 9)
		tenure.StopRenewing()
		time.Sleep(ttl / 2)
		mustToken(t, tenure)
		if got := renewals.Load(); got > 0 {
			t.Errorf("%d renewals were sent", got)
		}
	})
}

func TestThePausesBetweenRenewalsThatFailAreShortAgainAfterOneThatDoesNot(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		options := lease.Options{RenewEvery: ttl / 20, RequestTimeout: ttl / 20, RetryAfter: ttl / 100}
		n := newNode(t, store, "node-a", options)
		n.mustAcquire(t)
		synctest.Wait()
		const failures = 5
		var sent []time.Time
		n.scripted("SET", func(number int64) transporttest.Fault {
			sent = append(sent, time.Now())
			return transporttest.Fault{LoseRequest: number != failures+1}
		})
		time.Sleep(ttl)
		synctest.Wait()
		pause := func(number int) time.Duration { return sent[number].Sub(sent[number-1]) - options.RequestTimeout }
		if len(sent) < failures+3 {
			t.Fatalf("%d renewals were sent", len(sent))
		}
		if first, last := pause(1), pause(failures); first > 2*options.RetryAfter || last < 2*options.RetryAfter {
			t.Errorf("the first pause is %v, and the last %v", first, last)
		}
		if got := pause(failures + 2); got > 2*options.RetryAfter {
			t.Errorf("after a renewal that succeeded the first pause is %v", got)
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

func TestTheTokenIsRefusedFromTheCallOfReleaseOn(t *testing.T) {
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

func TestADeletionBeforeTheWatchBeginsIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n, other := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		tenure := n.mustAcquire(t)
		if _, err := other.client.Del(t.Context(), name, transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl / 10) // renewals begin later
		synctest.Wait()
		if err := tenure.Err(); !errors.Is(err, lease.ErrDeleted) {
			t.Errorf("%v, want ErrDeleted", err)
		}
	})
}
