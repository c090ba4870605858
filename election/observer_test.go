package election_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant45AnObserverThatIsSlowOrPanicsHarmsNothing(t *testing.T) {
	for _, test := range []struct {
		name     string
		observer func(election.Status)
	}{
		{"it panics", func(election.Status) { panic("observer") }},
		{"it is slow", func(election.Status) { time.Sleep(ttl / 2) }},
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
				second.mustBeFree(t)
			})
		})
	}
}

// stuck is an observer that blocks in one phase until the test unblocks it.
type stuck struct {
	in      election.Phase
	unblock chan struct{}
	blocked atomic.Bool  // it is, or was
	running atomic.Int64 // calls
	overlap atomic.Bool  // of calls
}

func newStuck(in election.Phase) *stuck { return &stuck{in: in, unblock: make(chan struct{})} }

func (s *stuck) observe(transition election.Status) {
	if s.running.Add(1) > 1 {
		s.overlap.Store(true)
	}
	defer s.running.Add(-1)
	if transition.Phase == s.in {
		s.blocked.Store(true)
		await.Receive(s.unblock)
	}
}

func TestInvariant45AnObserverThatBlocksDoesNotKeepTheLease(t *testing.T) {
	for _, test := range []struct {
		in     election.Phase
		within time.Duration // after the node is asked to go, or has the lease
		led    bool          // its function ran
	}{
		{election.Standby, 0, false},
		{election.Claiming, ttl + ttl/10, false},
		{election.Active, ttl + ttl/10, false},
		{election.Draining, ttl + ttl/10, true},
		{election.Released, 10 * time.Millisecond, true},
	} {
		t.Run(string(test.in), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				observer := newStuck(test.in)
				options := election.Options{Claim: []string{key}, Observer: observer.observe}
				pairInBubble(t, options, election.Options{}, func(t *testing.T, first, second *candidate) {
					var calls atomic.Int64
					first.run(t, func(ctx context.Context, _ *election.Term) error {
						calls.Add(1)
						await.Receive(ctx.Done())
						return nil
					})
					synctest.Wait()
					second.run(t, serve)
					if test.led {
						time.Sleep(3 * ttl)
						first.Resign()
					}
					time.Sleep(test.within)
					synctest.Wait()
					second.mustLead(t)
					if !observer.blocked.Load() || (calls.Load() > 0) != test.led {
						t.Errorf("blocked %v, %d calls of the function", observer.blocked.Load(), calls.Load())
					}
					// It neither leads nor stands in the way for as long as that lasts.
					_ = second.stop()
					time.Sleep(20 * ttl)
					first.mustBeFree(t)
					close(observer.unblock)
					if test.in != election.Standby {
						time.Sleep(ttl / 4) // half of the hold-off
						first.mustBeFree(t)
					}
					time.Sleep(ttl)
					first.mustLead(t)
					released, count := first.last(election.Released)
					if !test.led && test.in != election.Standby &&
						(count != 1 || !errors.Is(released.Cause, election.ErrNotReady) || !strings.Contains(released.Cause.Error(), "the observer")) {
						t.Errorf("released %d times, because of %v; want ErrNotReady that names the observer", count, released.Cause)
					}
					_ = first.stop()
					if observer.overlap.Load() {
						t.Error("it was called twice at once")
					}
					history := first.history()
					if !slices.IsSortedFunc(history, func(a, b election.Status) int { return a.Since.Compare(b.Since) }) {
						t.Errorf("delivered out of order: %+v", history)
					}
				})
			})
		})
	}
}

func TestInvariant42RunReleasesTheLeaseAndThenWaitsForTheObserver(t *testing.T) {
	for in, within := range map[election.Phase]time.Duration{
		election.Claiming: time.Millisecond, election.Active: time.Millisecond, election.Draining: ttl, election.Released: time.Millisecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			observer := newStuck(in)
			options := election.Options{Claim: []string{key}, Observer: observer.observe}
			pairInBubble(t, options, election.Options{}, func(t *testing.T, first, second *candidate) {
				first.run(t, serve)
				time.Sleep(ttl / 4)
				releases := first.requests("VDEL")
				first.cancel()
				time.Sleep(within)
				if holder, err := second.leader(t); err != nil || holder.Held || releases() != 1 {
					t.Errorf("%v: %+v leads, %v, after %d releases; want no leader after one", in, holder, err, releases())
				}
				select {
				case err := <-first.result:
					t.Errorf("%v: Run returned %v before the observer", in, err)
				default:
				}
				close(observer.unblock)
				if err := await.Receive(first.result); !errors.Is(err, context.Canceled) {
					t.Errorf("%v: Run returned %v", in, err)
				}
				if last := first.phases(); last[len(last)-1] != election.Released {
					t.Errorf("%v: the observer got %v", in, last)
				}
			})
		})
	}
}

// What keeps the node from the lease changes all the time, and the queue for the slow observer
// does not grow.
func TestASlowObserverGetsOnlyTheLatestCauseOfStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		var first atomic.Bool
		unblock := make(chan struct{})
		c := newStubborn(t, store, "node-a", election.Options{Observer: func(transition election.Status) {
			if transition.Phase == election.Standby && transition.Cause != nil && first.CompareAndSwap(false, true) {
				await.Receive(unblock)
			}
		}})
		c.run(t, serve)
		synctest.Wait()
		c.mustLead(t)
		c.refuse(transport.ErrNotAuthorized)
		time.Sleep(2 * ttl) // its tenure is over
		for range 50 {
			c.refuse(transport.ErrQuotaExceeded)
			time.Sleep(ttl)
			c.refuse(transport.ErrFencingTokenRequired)
			time.Sleep(ttl)
		}
		close(unblock)
		synctest.Wait()
		if _, count := c.last(election.Standby); count > 4 {
			t.Errorf("%d Standbys", count)
		}
		c.refuse(nil)
		time.Sleep(2 * ttl)
		c.mustLead(t)
		_ = c.stop()
	})
}

func TestInvariant42RunWaitsForAnObserverOfStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unblock := make(chan struct{})
		c := newStubborn(t, transporttest.Start(t), "node-a", election.Options{Observer: func(transition election.Status) {
			if transition.Cause != nil {
				await.Receive(unblock)
			}
		}})
		c.refuse(transport.ErrNotAuthorized)
		c.run(t, serve)
		time.Sleep(ttl)
		c.cancel()
		time.Sleep(ttl)
		select {
		case err := <-c.result:
			t.Errorf("Run returned %v before the observer", err)
		default:
		}
		close(unblock)
		await.Receive(c.result)
	})
}

func TestAQuickObserverGetsDrainingBeforeTheLeaseIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first *candidate
		options := election.Options{Observer: func(transition election.Status) {
			if transition.Phase == election.Draining {
				time.Sleep(ttl / 4)
				first.mustLead(t) // in the eyes of the store
			}
		}}
		pairInBubble(t, options, election.Options{}, func(t *testing.T, a, second *candidate) {
			first = a
			runBoth(t, first, second)
			first.Resign()
			time.Sleep(ttl/4 + 20*time.Millisecond)
			second.mustLead(t)
			_, _ = first.stop(), second.stop()
		})
	})
}

func TestInvariant2NoTermStartsAfterAnObserverInWhichTheProcessStoodStill(t *testing.T) {
	for _, in := range []election.Phase{election.Claiming, election.Active} {
		synctest.Test(t, func(t *testing.T) {
			var machine suspendedClock
			pairInBubble(t, election.Options{
				Claim: []string{key},
				Lease: lease.Options{Clock: machine.clock()},
				Observer: func(transition election.Status) {
					if transition.Phase == in {
						machine.suspend(ttl)
					}
				},
			}, election.Options{}, func(t *testing.T, first, _ *candidate) {
				first.run(t, func(context.Context, *election.Term) error {
					t.Errorf("%v: the function ran", in)
					return nil
				})
				synctest.Wait()
				if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrDeadlinePassed) {
					t.Errorf("%v: released because of %v, want ErrDeadlinePassed", in, released.Cause)
				}
				_ = first.stop()
			})
		})
	}
}

// The context may end while the observer of Active runs, before the function is called.
func TestAnObserverThatGotActiveAlsoGetsDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *candidate
		c = newCandidate(t, transporttest.Start(t), "node-a", election.Options{Observer: func(transition election.Status) {
			if transition.Phase == election.Active {
				c.cancel()
			}
		}})
		c.run(t, serve)
		if err := await.Receive(c.result); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		want := []election.Phase{election.Standby, election.Active, election.Draining, election.Released}
		if got := c.phases(); !slices.Equal(got, want) {
			t.Errorf("phases %v, want %v", got, want)
		}
	})
}

func TestWhetherANodeLeadsAndWhyNotIsLoggedOnceForEachChange(t *testing.T) {
	var log bytes.Buffer // slog's handlers lock it
	var sick atomic.Bool
	var ended atomic.Int64
	var got []string
	pair(t, election.Options{}, election.Options{
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, slog.LevelKey, "token", "waited", "held", "for":
				return slog.Attr{}
			}
			return a
		}})),
		Lease: lease.Options{Trace: &lease.Trace{Ended: func(lease.TraceInfo) { ended.Add(1) }}},
		Health: func(context.Context) error {
			if sick.Load() {
				return errJammed
			}
			return nil
		},
	}, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		time.Sleep(5 * ttl)
		first.Resign()
		time.Sleep(ttl)
		second.mustLead(t)
		sick.Store(true)
		time.Sleep(5 * ttl)
		sick.Store(false) // for less than the hold-off
		time.Sleep(ttl / 3)
		sick.Store(true)
		time.Sleep(5 * ttl)
		_, _ = first.stop(), second.stop()
		synctest.Wait() // what logs has ended
		if ended.Load() != 1 {
			t.Errorf("Lease.Trace got the end of %d tenures, want 1", ended.Load())
		}
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "health check failed") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		want := []string{
			`msg="standing by" lease=press-7/active`,
			`msg="waiting for the lease: another holder has it" lease=press-7/active holder=node-a`,
			`msg="the lease is acquired" lease=press-7/active holder=node-b`,
			`msg=leading lease=press-7/active`,
			`msg="no longer leading" lease=press-7/active cause="unhealthy: the press is jammed"`,
			`msg="the tenure has ended" lease=press-7/active cause="given up by its holder"`,
			`msg="standing by" lease=press-7/active cause="unhealthy: the press is jammed"`,
			`msg="staying out of the election for a while" lease=press-7/active`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestAnObserverThatBlocksHoldsUpNoOtherElectionOfItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		open := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		run := func(name string, options election.Options) *election.Elector {
			options.TTL = ttl
			e, err := election.New(client, name, options)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx, serve) }()
			t.Cleanup(func() { cancel(); await.Receive(done) })
			return e
		}
		run("other/active", election.Options{Observer: func(election.Status) { await.Receive(open) }})
		t.Cleanup(func() { close(open) })
		time.Sleep(ttl)
		e := run(name, election.Options{})
		time.Sleep(ttl)
		if got := e.Status().Phase; got != election.Active {
			t.Errorf("the other election is %s", got)
		}
	})
}
