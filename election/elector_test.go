package election_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	name = "press-7/active"
	key  = "press-7/setpoint"
	ttl  = 2 * time.Second
)

// candidate is one process that campaigns.
type candidate struct {
	*election.Elector
	client *transport.Client
	conn   *transporttest.Conn

	cancel context.CancelFunc
	result chan error // of Run

	mu          sync.Mutex
	transitions []election.Transition
}

func newCandidate(t *testing.T, store *transporttest.Store, id string, options election.Options) *candidate {
	t.Helper()
	c := &candidate{}
	c.client, c.conn = store.Client(t, id, transport.ClientOptions{})
	c.elect(t, options)
	return c
}

// elect gives a candidate that has a client its elector.
func (c *candidate) elect(t *testing.T, options election.Options) {
	t.Helper()
	if options.TTL == 0 {
		options.TTL = ttl
	}
	if options.Lease.Clock == nil {
		options.Lease.Clock = lease.MonotonicClock()
	}
	next := options.Observer
	options.Observer = func(transition election.Transition) {
		c.mu.Lock()
		c.transitions = append(c.transitions, transition)
		c.mu.Unlock()
		if next != nil {
			next(transition)
		}
	}
	var err error
	if c.Elector, err = election.New(c.client, name, options); err != nil {
		t.Fatal(err)
	}
}

// run campaigns until the test ends or stop is called.
func (c *candidate) run(t *testing.T, lead func(context.Context, *election.Term) error) {
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	result := make(chan error, 1)
	c.result = result
	go func() {
		defer close(result)
		result <- c.Run(ctx, lead)
	}()
}

// stop ends the campaign and returns what Run returned; nil if that was read before.
func (c *candidate) stop() error {
	c.cancel()
	return await.Receive(c.result)
}

// last returns the latest transition to a phase, and how many there were.
func (c *candidate) last(phase election.Phase) (latest election.Transition, count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, transition := range c.transitions {
		if transition.Phase == phase {
			latest, count = transition, count+1
		}
	}
	return latest, count
}

// history returns all transitions so far.
func (c *candidate) history() []election.Transition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.transitions)
}

func (c *candidate) phases() []election.Phase {
	var phases []election.Phase
	for _, transition := range c.history() {
		phases = append(phases, transition.Phase)
	}
	return phases
}

// serve is a leader that works until it is told to stop.
func serve(ctx context.Context, _ *election.Term) error {
	await.Receive(ctx.Done())
	return nil
}

// inBubble runs a test in virtual time with two candidates, of which the first
// leads.
func inBubble(t *testing.T, options election.Options, test func(t *testing.T, first, second *candidate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		first, second := newCandidate(t, store, "node-a", options), newCandidate(t, store, "node-b", options)
		test(t, first, second)
	})
}

// runBoth makes first lead and second stand by.
func runBoth(t *testing.T, first, second *candidate) {
	t.Helper()
	first.run(t, serve)
	synctest.Wait()
	second.run(t, serve)
	synctest.Wait()
	first.mustLead(t)
}

func (c *candidate) mustLead(t *testing.T) {
	t.Helper()
	holder, err := c.Leader(t.Context())
	if err != nil || holder.Name != c.client.ClientID() {
		t.Fatalf("%+v leads, %v; want %s", holder, err, c.client.ClientID())
	}
}

func TestATermGoesThroughItsPhasesInOrder(t *testing.T) {
	inBubble(t, election.Options{Claim: []string{key}}, func(t *testing.T, first, second *candidate) {
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
		_ = second.stop()
	})
}

func TestADeadLeaderIsSucceededWithinTTLAndJitter(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		time.Sleep(5 * ttl)
		died := time.Now()
		first.conn.Cut()
		time.Sleep(ttl + ttl/10)
		synctest.Wait()
		second.mustLead(t)
		active, _ := second.last(election.Active)
		if gap := active.At.Sub(died); gap > ttl+ttl/10 {
			t.Errorf("%v without a leader", gap)
		}
		drained, _ := first.last(election.Draining)
		if !drained.At.Before(active.At) || !errors.Is(drained.Cause, lease.ErrDeadlinePassed) {
			t.Errorf("the old leader's context ended at %v (%v), the new one's function began at %v", drained.At, drained.Cause, active.At)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestAResignedLeaderIsSucceededAtOnceAndStaysOutForAWhile(t *testing.T) {
	inBubble(t, election.Options{HoldOff: 3 * ttl}, func(t *testing.T, first, second *candidate) {
		if first.Resign() {
			t.Error("Resign of an elector that does not run reported a term")
		}
		runBoth(t, first, second)
		resigned := time.Now()
		if !first.Resign() {
			t.Error("Resign reported no term")
		}
		time.Sleep(20 * time.Millisecond)
		active, _ := second.last(election.Active)
		if gap := active.At.Sub(resigned); active.At.IsZero() || gap > 10*time.Millisecond {
			t.Errorf("the successor led after %v", gap)
		}
		if drained, _ := first.last(election.Draining); !errors.Is(drained.Cause, election.ErrResigned) {
			t.Errorf("cause %v, want ErrResigned", drained.Cause)
		}
		_ = second.stop() // now nobody leads, and the first is still out
		time.Sleep(2 * ttl)
		if _, terms := first.last(election.Active); terms != 1 {
			t.Error("the node that resigned was back before its hold-off")
		}
		time.Sleep(2 * ttl)
		first.mustLead(t)
		_ = first.stop()
	})
}

func TestInvariant8TheNextTermBeginsOnlyAfterTheFunctionReturned(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
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
		second.mustLead(t) // nobody waits for a function that does not return
		_ = second.stop()
		time.Sleep(2 * ttl)
		if got := running.Load(); got != 1 {
			t.Errorf("%d calls run", got)
		}
		if holder, err := first.Leader(t.Context()); err != nil || holder.Held {
			t.Errorf("%+v leads, %v, while its function of an earlier term has not returned", holder, err)
		}
		time.Sleep(10 * ttl)
		first.mustLead(t)
		_ = first.stop()
	})
}

func TestTheLeaseIsReleasedWhenTheFunctionHasReturnedAndNotBefore(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		const windingUp = ttl / 2
		first.run(t, func(ctx context.Context, term *election.Term) error {
			await.Receive(ctx.Done())
			time.Sleep(windingUp)
			// The last write of an orderly end is still allowed.
			_, err := term.Guard().Set(context.WithoutCancel(ctx), key, []byte("parked"))
			return err
		})
		synctest.Wait()
		second.run(t, serve)
		synctest.Wait()
		resigned := time.Now()
		first.Resign()
		time.Sleep(ttl)
		active, _ := second.last(election.Active)
		if waited := active.At.Sub(resigned); waited < windingUp || waited > windingUp+10*time.Millisecond {
			t.Errorf("the successor led after %v, the function took %v", waited, windingUp)
		}
		if entry, err := second.client.Get(t.Context(), key); err != nil || string(entry.Value) != "parked" {
			t.Errorf("the key holds %q, %v", entry.Value, err)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestAFunctionThatWindsUpForTooLongLosesItsTokenAtTheDeadline(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		late := make(chan error, 1)
		first.run(t, func(ctx context.Context, term *election.Term) error {
			await.Receive(ctx.Done())
			time.Sleep(ttl)
			_, err := term.Guard().Set(context.WithoutCancel(ctx), key, []byte("late"))
			late <- err
			return err
		})
		synctest.Wait()
		second.run(t, serve)
		time.Sleep(5 * ttl)
		first.Resign()
		if err := await.Receive(late); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("the late write: %v, want ErrDeadlinePassed", err)
		}
		time.Sleep(ttl / 5)
		second.mustLead(t)
		_, _ = first.stop(), second.stop()
	})
}

func TestInvariant45AFunctionThatFailsEndsItsTermAndReleasesIt(t *testing.T) {
	failure := errors.New("the press jammed")
	for _, test := range []struct {
		name string
		lead func() error
		want func(error) bool
	}{
		{"it returns an error", func() error { return failure }, func(err error) bool { return errors.Is(err, failure) }},
		{"it returns nil", func() error { return nil }, func(err error) bool { return err == nil }},
		{"it panics", func() error { panic("out of paper") }, func(err error) bool {
			var panicked *election.PanicError
			return errors.As(err, &panicked) && panicked.Value == "out of paper" && strings.Contains(err.Error(), "elector_test.go")
		}},
		{"it panics with an error", func() error { panic(failure) }, func(err error) bool { return errors.Is(err, failure) }},
		{"it ends its goroutine", func() error { runtime.Goexit(); return nil }, func(err error) bool {
			var panicked *election.PanicError
			return errors.As(err, &panicked) && panicked.Value == nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, election.Options{OneShot: true}, func(t *testing.T, first, second *candidate) {
				fail := make(chan struct{})
				first.run(t, func(context.Context, *election.Term) error {
					await.Receive(fail)
					return test.lead()
				})
				synctest.Wait()
				second.run(t, serve)
				synctest.Wait()
				close(fail)
				if err := await.Receive(first.result); !test.want(err) {
					t.Errorf("Run returned %v", err)
				}
				if released, _ := first.last(election.Released); !errors.Is(released.Cause, election.ErrReturned) {
					t.Errorf("cause %v, want ErrReturned", released.Cause)
				}
				time.Sleep(10 * time.Millisecond)
				second.mustLead(t)
				_ = second.stop()
			})
		})
	}
}

func TestInvariant29ANodeThatKeepsFailingLeavesOthersTheirTurn(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.run(t, func(context.Context, *election.Term) error { return errors.New("fails at once") })
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
		_ = first.stop()
	})
}

func TestInvariant45AnObserverThatIsSlowOrPanicsHarmsNothing(t *testing.T) {
	for _, test := range []struct {
		name     string
		observer func(election.Transition)
	}{
		{"it panics", func(election.Transition) { panic("observer") }},
		{"it is slow", func(election.Transition) { time.Sleep(ttl / 2) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, election.Options{Observer: test.observer}, func(t *testing.T, first, second *candidate) {
				var led atomic.Bool
				first.run(t, func(ctx context.Context, term *election.Term) error {
					_, err := term.Token()
					led.Store(err == nil)
					await.Receive(ctx.Done())
					return nil
				})
				time.Sleep(20 * ttl)
				if !led.Load() {
					t.Error("it did not lead, or had lost its token to the observer")
				}
				_ = first.stop()
				if holder, err := second.Leader(t.Context()); err != nil || holder.Held {
					t.Errorf("not released: %+v, %v", holder, err)
				}
			})
		})
	}
}

func TestAnOldLeadersWriteIsRefusedOnceTheNewOneHasClaimed(t *testing.T) {
	inBubble(t, election.Options{Claim: []string{key}}, func(t *testing.T, first, second *candidate) {
		var token hlc.Token
		first.run(t, func(ctx context.Context, term *election.Term) error {
			token, _ = term.Token()
			await.Receive(ctx.Done())
			return nil
		})
		synctest.Wait()
		second.run(t, serve)
		synctest.Wait()
		first.Resign()
		time.Sleep(ttl / 4)
		second.mustLead(t)
		// It has not written yet, only claimed.
		_, err := first.client.Set(t.Context(), key, []byte("old"), transport.SetOptions{FencingToken: token})
		if !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("the old leader's write: %v, want ErrFencingTokenLower", err)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestAClaimThatCannotBeMadeEndsTheTerm(t *testing.T) {
	inBubble(t, election.Options{Claim: []string{""}, OneShot: true}, func(t *testing.T, first, second *candidate) {
		first.run(t, func(context.Context, *election.Term) error {
			t.Error("the function runs although the claim failed")
			return nil
		})
		if err := await.Receive(first.result); !errors.Is(err, transport.ErrKeyLengthZero) {
			t.Errorf("Run returned %v, want ErrKeyLengthZero", err)
		}
		if holder, err := second.Leader(t.Context()); err != nil || holder.Held {
			t.Errorf("not released: %+v, %v", holder, err)
		}
	})
}

func TestRunEndsWhenTheClientIsTakenOverOrClosed(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(*candidate)
		want error
	}{
		{"closed", func(c *candidate) { _ = c.client.Close() }, transport.ErrClosed},
		{"cancelled", func(c *candidate) { c.cancel() }, context.Canceled},
	} {
		for _, leads := range []bool{true, false} {
			inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
				runBoth(t, first, second)
				ending, other := second, first
				if leads {
					ending, other = first, second
				}
				test.end(ending)
				if err := await.Receive(ending.result); !errors.Is(err, test.want) {
					t.Errorf("%s, leads %v: Run returned %v, want %v", test.name, leads, err, test.want)
				}
				_ = other.stop()
			})
		}
	}
}

func TestRunRunsOnceAtATime(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, _ *candidate) {
		first.run(t, serve)
		synctest.Wait()
		if err := first.Run(t.Context(), serve); !errors.Is(err, election.ErrRunning) {
			t.Errorf("a second Run: %v, want ErrRunning", err)
		}
		_ = first.stop()
		first.run(t, serve)
		synctest.Wait()
		first.mustLead(t)
		_ = first.stop()
	})
}

func TestInvariant42RunEndsAtAnyMomentAndLeavesNothing(t *testing.T) {
	const roundTrip = ttl / 50
	for when := time.Duration(0); when < 4*ttl; when += ttl/17 + time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			options := election.Options{
				Claim:         []string{key},
				FailBackAfter: ttl,
				HealthEvery:   every,
				Health: func(ctx context.Context) error {
					time.Sleep(every)
					return ctx.Err()
				},
				Standby: func(ctx context.Context) error {
					await.Receive(ctx.Done())
					time.Sleep(every)
					return nil
				},
			}
			var working atomic.Int64 // calls of the functions that have not returned
			health, standby := options.Health, options.Standby
			options.Health = func(ctx context.Context) error {
				working.Add(1)
				defer working.Add(-1)
				return health(ctx)
			}
			options.Standby = func(ctx context.Context) error {
				working.Add(1)
				defer working.Add(-1)
				return standby(ctx)
			}
			candidates := ranked(t, store, 2, options)
			for i := range candidates {
				c := candidates[len(candidates)-1-i]
				c.conn.SetFault(func(transport.Request) transporttest.Fault {
					return transporttest.Fault{HoldRequest: roundTrip / 2, HoldReply: roundTrip / 2}
				})
				c.run(t, serve)
				time.Sleep(roundTrip)
			}
			time.Sleep(when)
			for _, c := range candidates {
				c.cancel()
			}
			for _, c := range candidates {
				if err := await.Receive(c.result); !errors.Is(err, context.Canceled) {
					t.Errorf("after %v: Run returned %v, want Canceled", when, err)
				}
			}
			if got := working.Load(); got != 0 {
				t.Errorf("after %v: %d functions run", when, got)
			}
			time.Sleep(ttl / 4) // an acquisition cut short is resolved in the background
			holder, err := candidates[0].Leader(t.Context())
			if bid := candidates[0].bid(t); err != nil || holder.Held || bid != "" {
				t.Errorf("after %v: %+v leads, bid %q, %v; want nothing left", when, holder, bid, err)
			}
		})
	}
}

func TestLeadersYieldsEachLeader(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for leader, err := range second.Leaders(ctx) {
				if err != nil {
					t.Error(err)
				}
				if leader.Held {
					seen = append(seen, leader.Name)
				}
			}
		}()
		time.Sleep(ttl)
		first.Resign()
		time.Sleep(ttl)
		cancel()
		await.Receive(ended)
		if want := []string{"node-a", "node-b"}; !slices.Equal(seen, want) {
			t.Errorf("seen %q, want %q", seen, want)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestNonsensicalOptionsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		for _, test := range []struct {
			name    string
			options election.Options
			want    string
		}{
			{"the same TTL twice", election.Options{TTL: ttl, Lease: lease.Options{TTL: ttl}}, "set Options.TTL instead"},
			{"a negative hold-off", election.Options{HoldOff: -1}, "HoldOff"},
			{"an acquire delay beside the rank", election.Options{Lease: lease.Options{AcquireDelay: ttl}}, "set Options.Rank"},
			{"a negative pause between checks", election.Options{HealthEvery: -1}, "HealthEvery"},
			{"a negative timeout of checks", election.Options{HealthTimeout: -1}, "HealthTimeout"},
			{"a negative number of failures", election.Options{HealthFailures: -1}, "HealthFailures"},
			{"a negative rank", election.Options{Rank: -1}, "the best rank is 0"},
			{"a negative delay", election.Options{RankDelay: -1}, "RankDelay"},
			{"a rank whose turn never comes", election.Options{Rank: 1 << 30, RankDelay: 10000 * time.Hour}, "small numbers"},
			{"a negative hold-down", election.Options{FailBackAfter: -1}, "FailBackAfter"},
			{"a negative TTL", election.Options{TTL: -ttl, Rank: 1}, "TTL -2s"},
			{"a lease that could not be held", election.Options{TTL: ttl, Lease: lease.Options{RenewEvery: ttl}}, "RenewEvery"},
		} {
			if _, err := election.New(client, name, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want an error that says %q", test.name, err, test.want)
			}
		}
	})
}
