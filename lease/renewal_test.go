package lease_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

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

