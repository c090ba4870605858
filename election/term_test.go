package election_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAnOldLeadersWriteIsRefusedOnceTheNewOneHasClaimed(t *testing.T) {
	options := election.Options{Claim: []string{key}}
	pair(t, options, options, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		time.Sleep(5 * ttl)
		if err := first.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want Canceled", err)
		}
		want := []election.Phase{election.Standby, election.Claiming, election.Active, election.Draining, election.Released}
		if got := first.phases(); !slices.Equal(got, want) {
			t.Errorf("phases %v, want %v", got, want)
		}
		released, _ := first.last(election.Released)
		active, _ := first.last(election.Active)
		if !errors.Is(released.Cause, context.Canceled) || released.Token != active.Token || active.Token.IsZero() {
			t.Errorf("active %+v, released %+v", active, released)
		}
		time.Sleep(20 * time.Millisecond)
		second.mustLead(t)
		if successor, _ := second.last(election.Active); successor.Token.Compare(active.Token) <= 0 {
			t.Errorf("the successor's token %v is not above %v", successor.Token, active.Token)
		}
		// It has not written yet, only claimed.
		_, err := first.client.Set(t.Context(), key, []byte("old"), transport.SetOptions{FencingToken: active.Token})
		if !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("the old leader's write: %v, want ErrFencingTokenLower", err)
		}
	})
}

func TestInvariant28AKeyThatCannotBeClaimedCausesNoHotLoop(t *testing.T) {
	var claims atomic.Int64
	observer := func(transition election.Status) {
		if transition.Phase == election.Claiming && claims.Add(1) > 100 {
			time.Sleep(ttl / 10) // a loop so hot would keep virtual time from passing
		}
	}
	pair(t, election.Options{Claim: []string{key}, Observer: observer}, election.Options{}, func(t *testing.T, first, second *candidate) {
		ahead := hlc.Token{Wall: time.Now().Add(50 * time.Second).UnixMilli(), Node: "forger"}
		if _, err := second.client.Set(t.Context(), key, nil, transport.SetOptions{FencingToken: ahead}); err != nil {
			t.Fatal(err)
		}
		first.run(t, serve)
		time.Sleep(10 * ttl)
		if _, terms := first.last(election.Claiming); terms < 2 || terms > 8 {
			t.Errorf("%d terms in 10 TTL", terms)
		}
		if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrFencedOut) {
			t.Errorf("released because of %v, want ErrFencedOut", released.Cause)
		}
		time.Sleep(50 * time.Second) // the token is in the past
		first.mustLead(t)
	})
}

// A claim of the lease's own name took away its expiry and fenced its renewals permanently.
func TestInvariant54TheKeyOfTheElectionCannotBeClaimed(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		client, _ := store.Client(t, "node-a", transport.ClientOptions{})
		for claimed, want := range map[string]error{name: fencing.ErrLeaseKey, requestsKey: fencing.ErrLeaseKey, name + "/count": nil} {
			if _, err := election.New(client, name, election.Options{Claim: []string{key, claimed}}); !errors.Is(err, want) {
				t.Errorf("Claim of %q: %v, want %v", claimed, err, want)
			}
		}
	})
}

func TestInvariant8TheNextTermBeginsOnlyAfterTheFunctionReturned(t *testing.T) {
	pair(t, election.Options{}, election.Options{}, func(t *testing.T, first, second *candidate) {
		var running atomic.Int64
		first.run(t, func(ctx context.Context, _ *election.Term) error {
			if running.Add(1) > 1 {
				t.Error("two calls of the function overlap")
			}
			defer running.Add(-1)
			await.Receive(ctx.Done())
			time.Sleep(10 * ttl) // does not care about deadlines
			return nil
		})
		synctest.Wait()
		second.run(t, serve)
		first.conn.Cut()
		time.Sleep(3 * ttl)
		first.conn.Restore()
		second.mustLead(t) // no node waits for a function that does not return
		_ = second.stop()
		time.Sleep(2 * ttl)
		first.mustBeFree(t)
		time.Sleep(10 * ttl)
		first.mustLead(t)
	})
}

// The last write of an orderly end is allowed, for as long as the tenure lasts.
func TestTheLeaseIsReleasedWhenTheFunctionHasReturnedAndNotBefore(t *testing.T) {
	for _, test := range []struct {
		windingUp time.Duration
		want      error // of the last write
	}{{ttl / 2, nil}, {ttl, lease.ErrDeadlinePassed}} {
		pair(t, election.Options{}, election.Options{}, func(t *testing.T, first, second *candidate) {
			first.run(t, func(ctx context.Context, term *election.Term) error {
				await.Receive(ctx.Done())
				time.Sleep(test.windingUp)
				if _, err := term.Guard().Set(context.WithoutCancel(ctx), key, nil); !errors.Is(err, test.want) {
					t.Errorf("after %v the last write: %v, want %v", test.windingUp, err, test.want)
				}
				return nil
			})
			synctest.Wait()
			second.run(t, serve)
			time.Sleep(5 * ttl)
			resigned := time.Now()
			first.Resign()
			time.Sleep(2 * ttl)
			active, _ := second.last(election.Active)
			if waited := active.Since.Sub(resigned); test.want == nil && (waited < test.windingUp || waited > test.windingUp+10*time.Millisecond) {
				t.Errorf("the successor led after %v, the function took %v", waited, test.windingUp)
			}
			second.mustLead(t)
		})
	}
}

func TestInvariant45AFunctionThatFailsEndsItsTermAndReleasesIt(t *testing.T) {
	for _, test := range []struct {
		lead func() error
		want string
	}{
		{func() error { return errJammed }, "the press is jammed"},
		{func() error { return nil }, election.ErrReturned.Error()},
		{func() error { panic("out of paper") }, "panicked: out of paper"},
		{func() error { panic(errJammed) }, "panicked: the press is jammed"},
		{func() error { runtime.Goexit(); return nil }, "the leader function ended its goroutine"},
	} {
		pair(t, election.Options{}, election.Options{}, func(t *testing.T, first, second *candidate) {
			fail := make(chan struct{})
			first.run(t, func(context.Context, *election.Term) error {
				await.Receive(fail)
				return test.lead()
			})
			synctest.Wait()
			second.run(t, serve)
			synctest.Wait()
			close(fail)
			time.Sleep(10 * time.Millisecond)
			released, _ := first.last(election.Released)
			if !errors.Is(released.Cause, election.ErrReturned) || !strings.Contains(released.Cause.Error(), test.want) {
				t.Errorf("cause %v, want ErrReturned with %q", released.Cause, test.want)
			}
			second.mustLead(t)
		})
	}
}

func TestInvariant45AnotherFunctionThatFailsHarmsNoMoreThanItHasTo(t *testing.T) {
	for _, test := range []struct {
		name   string
		fails  election.Options
		unfit  bool // the node does not lead then
		logged string
	}{
		{"the observer", election.Options{Observer: func(election.Status) { panic("cold") }}, false, "the observer panicked: cold"},
		{"the health check", election.Options{Health: func(context.Context) error { panic("cold") }}, true, "the health check panicked: cold"},
	} {
		var log logbuffer.Buffer
		test.fails.Logger = log.Logger()
		pair(t, election.Options{}, test.fails, func(t *testing.T, first, second *candidate) {
			runBoth(t, first, second)
			time.Sleep(3 * ttl)
			first.Resign()
			time.Sleep(ttl / 4)
			if leads := second.leader(t).Name == "node-b"; leads == test.unfit || !strings.Contains(log.String(), test.logged) {
				t.Errorf("%s: it leads: %t, and logged\n%s", test.name, leads, log.String())
			}
		})
	}
}

func TestInvariant29ANodeThatKeepsFailingLeavesOthersTheirTurn(t *testing.T) {
	pair(t, election.Options{}, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.run(t, func(context.Context, *election.Term) error { return errJammed })
		synctest.Wait()
		second.conn.Silence(true) // even if it learns of vacancies only by its timer
		second.run(t, serve)
		time.Sleep(10 * ttl)
		second.mustLead(t)
		_ = second.stop()
		_, before := first.last(election.Active)
		time.Sleep(20 * ttl)
		if _, after := first.last(election.Active); after-before > 8 {
			t.Errorf("alone, it tried %d times in 20 TTL, which is 40 hold-offs; want it to back off", after-before)
		}
	})
}

// If the store is down for longer than the TTL, the term ends, and the release fails. The store
// then has the former lease for a whole lifetime. The next campaign of the node frees it, so that
// no node waits for that.
func TestTheLeaseOfAFormerTermDoesNotKeepANodeFromLeading(t *testing.T) {
	for _, rank := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.StartDurable(t, new(transporttest.Journal))
			node := newCandidate(t, store, "node-a", election.Options{Rank: rank})
			node.run(t, serve)
			time.Sleep(2 * ttl)
			store.Crash(0)
			node.conn.Restore() // when the store is up
			time.Sleep(10 * ttl)
			if released, _ := node.last(election.Released); !errors.Is(released.Cause, lease.ErrDeadlinePassed) || !errors.Is(released.Cause, transport.ErrNotSent) {
				t.Errorf("released because of %v, want ErrDeadlinePassed, and ErrNotSent of the release", released.Cause)
			}
			back := time.Now()
			if err := store.Recover(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * ttl)
			active, terms := node.last(election.Active)
			if waited := active.Since.Sub(back); terms != 2 || waited > ttl*3/4 {
				t.Errorf("rank %d: %d terms, the latest %v after the store was back", rank, terms, waited)
			}
		})
	}
}

// It stands still while it claims.
func TestInvariant2NoTermStartsAfterTheProcessStoodStill(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		var machine suspendedClock
		first := newCandidate(t, store, "node-a", election.Options{Claim: []string{key}, Lease: lease.Options{Clock: machine.clock()}})
		first.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if strings.Contains(string(request.Payload), key) {
				machine.suspend(ttl)
			}
			return transporttest.Fault{}
		})
		first.run(t, func(context.Context, *election.Term) error {
			t.Error("the function ran")
			return nil
		})
		synctest.Wait()
		if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrDeadlinePassed) {
			t.Errorf("released because of %v, want ErrDeadlinePassed", released.Cause)
		}
	})
}
