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

// It stands still while it claims.
func TestInvariant2NoTermStartsAfterTheProcessStoodStill(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		var suspended atomic.Int64
		first := newCandidate(t, store, "node-a", election.Options{Claim: []string{key}, Lease: lease.Options{Clock: func() time.Duration {
			return lease.SystemClock() + time.Duration(suspended.Load())
		}}})
		first.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			if strings.Contains(string(request.Payload), key) {
				suspended.Store(int64(ttl))
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
