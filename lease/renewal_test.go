package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestTheRenewalsOfManyLeasesAreSpreadFromTheBeginning(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		const leases, slices = 500, 10
		every := ttl / 6
		for i := range leases {
			l, err := lease.New(n.client, fmt.Sprintf("%s/%d", name, i), lease.Options{TTL: ttl})
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
				// Past the deadline of the tenure, and not past the deadline that the
				// renewal would set, which counts from its sending.
				stop.jump(17 * ttl / 20)
			}
			return transporttest.Fault{}
		})
		time.Sleep(ttl / 6)
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
		// An operator takes the lease away.
		operator, _ := store.Client(t, "operator", transport.ClientOptions{})
		if _, err := operator.Set(t.Context(), name, []byte("operator:1"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		await.Receive(tenure.Context().Done())
		if waited := time.Since(began); waited > ttl/6 {
			t.Errorf("noticed after %v, want by the next renewal", waited)
		}
		if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrLost) {
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
		if left := tenure.Remaining(); left <= 0 || context.Cause(tenure.Context()) != nil {
			t.Errorf("%v are left; %v", left, context.Cause(tenure.Context()))
		}
		tenure.StopRenewing()
		tenure.FencedOut(errors.New("a newer token was seen"))
		await.Receive(tenure.Context().Done())
		if waited := time.Since(began); waited > 0 {
			t.Errorf("that took %v", waited)
		}
	})
}

func TestARenewalUnderWayExtendsNothingAfterStopRenewing(t *testing.T) {
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
		if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrDeadlinePassed) || renewals() != 1 {
			t.Errorf("after %d renewals: %v", renewals(), err)
		}
	})
}

// Otherwise the next connection would send it, and the lease would not be free when the tenure is over.
func TestARenewalThatWaitsForAConnectionIsWithdrawn(t *testing.T) {
	for name, withdraw := range map[string]func(*lease.Tenure){
		"by StopRenewing":          (*lease.Tenure).StopRenewing,
		"by the end of the tenure": func(tenure *lease.Tenure) { tenure.FencedOut(errors.New("a newer token was seen")) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				tenure := n.mustAcquire(t)
				synctest.Wait()
				renewals := n.scripted("SET", harmless)
				n.conn.Cut()
				time.Sleep(ttl * 4 / 10) // by then a renewal is due
				withdraw(tenure)
				n.conn.Restore()
				time.Sleep(ttl)
				if got := renewals(); got > 0 {
					t.Errorf("%d renewals were sent", got)
				}
			})
		})
	}
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
		// The tenure asks the store about this, and meanwhile the renewal falls due.
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
