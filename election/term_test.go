package election_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

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
		if gap := active.Since.Sub(died); gap > ttl+ttl/10 {
			t.Errorf("%v without a leader", gap)
		}
		drained, _ := first.last(election.Draining)
		if !drained.Since.Before(active.Since) || !errors.Is(drained.Cause, lease.ErrDeadlinePassed) {
			t.Errorf("the old leader's context ended at %v (%v), the new one's function began at %v", drained.Since, drained.Cause, active.Since)
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
		if gap := active.Since.Sub(resigned); active.Since.IsZero() || gap > 10*time.Millisecond {
			t.Errorf("the successor led after %v", gap)
		}
		if drained, _ := first.last(election.Draining); !errors.Is(drained.Cause, election.ErrResigned) {
			t.Errorf("cause %v, want ErrResigned", drained.Cause)
		}
		_ = second.stop() // now no node leads, and the first is still out
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
		second.mustLead(t) // no node waits for a function that does not return
		_ = second.stop()
		time.Sleep(2 * ttl)
		if got := running.Load(); got != 1 {
			t.Errorf("%d calls run", got)
		}
		first.mustBeFree(t)
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
		if waited := active.Since.Sub(resigned); waited < windingUp || waited > windingUp+10*time.Millisecond {
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

// A tenure can end without notice: its store was replaced, say. A function that returns
// then as soon as it can is not late.
func TestALeaderFunctionIsLateOnlyAfterAGracePeriod(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		late  bool
	}{
		{"at once", time.Millisecond, false},
		{"never mind when", 2 * ttl, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				var log bytes.Buffer // slog's handlers lock it
				c := newCandidate(t, store, "node-a", election.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				c.run(t, func(ctx context.Context, _ *election.Term) error {
					await.Receive(ctx.Done())
					time.Sleep(test.takes)
					return nil
				})
				time.Sleep(ttl)
				c.mustLead(t)
				if err := store.Restart(statestore.Options{HoldOff: 10 * ttl}); err != nil {
					t.Fatal(err)
				}
				c.conn.Restore()
				time.Sleep(4 * ttl)
				_ = c.stop()
				synctest.Wait() // what logs has ended
				if late := strings.Contains(log.String(), "did not return in time"); late != test.late {
					t.Errorf("it was reported as late: %v, want %v; the log: %s", late, test.late, &log)
				}
			})
		})
	}
}

func TestInvariant45AFunctionThatFailsEndsItsTermAndReleasesIt(t *testing.T) {
	failure := errors.New("the press jammed")
	for _, test := range []struct {
		name string
		lead func() error
		want func(error) bool
	}{
		{"it returns an error", func() error { return failure }, func(err error) bool { return errors.Is(err, failure) }},
		{"it returns nil", func() error { return nil }, func(err error) bool { return err.Error() == election.ErrReturned.Error() }},
		{"it panics", func() error { panic("out of paper") }, func(err error) bool {
			return strings.Contains(err.Error(), "panicked: out of paper") && strings.Contains(err.Error(), "term_test.go")
		}},
		{"it panics with an error", func() error { panic(failure) }, func(err error) bool { return errors.Is(err, failure) }},
		{"it ends its goroutine", func() error { runtime.Goexit(); return nil }, func(err error) bool {
			return strings.Contains(err.Error(), "the leader function ended its goroutine")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
				fail := make(chan struct{})
				first.run(t, func(context.Context, *election.Term) error {
					await.Receive(fail)
					return test.lead()
				})
				synctest.Wait()
				second.run(t, serve)
				synctest.Wait()
				close(fail)
				synctest.Wait()
				if released, _ := first.last(election.Released); !errors.Is(released.Cause, election.ErrReturned) || !test.want(released.Cause) {
					t.Errorf("cause %v, want ErrReturned with what the function did", released.Cause)
				}
				time.Sleep(10 * time.Millisecond)
				second.mustLead(t)
				_, _ = first.stop(), second.stop()
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

func TestTheCauseOfATermIsTheEndOfItsTenureIfThatCameFirst(t *testing.T) {
	failure := errors.New("the press jammed")
	for _, test := range []struct {
		name string
		end  func(ctx context.Context, c *candidate) error
		also error // part of the cause
	}{
		{"the function returns", func(context.Context, *candidate) error { return nil }, nil},
		{"the function fails", func(context.Context, *candidate) error { return failure }, nil},
		{"the function resigns", func(ctx context.Context, c *candidate) error {
			c.Resign()
			await.Receive(ctx.Done())
			return failure
		}, election.ErrResigned},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var machine suspendedClock
				first := newCandidate(t, transporttest.Start(t), "node-a", election.Options{Lease: lease.Options{Clock: machine.clock()}})
				first.run(t, func(ctx context.Context, _ *election.Term) error {
					time.Sleep(3 * ttl)
					machine.suspend(ttl)
					return test.end(ctx, first)
				})
				time.Sleep(3*ttl + ttl/100)
				for _, phase := range []election.Phase{election.Draining, election.Released} {
					transition, _ := first.last(phase)
					if !errors.Is(transition.Cause, lease.ErrDeadlinePassed) || test.also != nil && !errors.Is(transition.Cause, test.also) {
						t.Errorf("%v because of %v, want ErrDeadlinePassed and %v", phase, transition.Cause, test.also)
					}
					if errors.Is(transition.Cause, election.ErrReturned) {
						t.Errorf("%v because of %v", phase, transition.Cause)
					}
				}
				_ = first.stop()
			})
		})
	}
}

func TestANodeThatLostTheLeaseAfterALongTermCampaignsAtOnce(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.run(t, serve)
		time.Sleep(3*ttl + time.Millisecond) // renewals leave at even milliseconds, and one after the deletion would set the key anew
		lost := time.Now()
		if _, err := second.client.Del(t.Context(), name, transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl)
		active, terms := first.last(election.Active)
		if terms != 2 || active.Since.Sub(lost) > 10*time.Millisecond {
			t.Errorf("%d terms, the latest %v after the first was lost", terms, active.Since.Sub(lost))
		}
		_ = first.stop()
	})
}

func TestInvariant28ALeaseThatIsLostAgainAndAgainAtOnceCausesNoHotLoop(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.run(t, func(ctx context.Context, _ *election.Term) error {
			time.Sleep(ttl / 20) // the tenure watches its key by now, and does not renew yet: a renewal after a deletion sets the key anew
			_, _ = second.client.Del(t.Context(), name, transport.DelOptions{})
			await.Receive(ctx.Done())
			return nil
		})
		time.Sleep(20 * ttl)
		if _, terms := first.last(election.Active); terms < 2 || terms > 12 {
			t.Errorf("%d terms in 20 TTL", terms)
		}
		if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrDeleted) {
			t.Errorf("released because of %v, want ErrDeleted", released.Cause)
		}
		_ = first.stop()
	})
}

// The store of the pair is killed, and is back within the margin of the lease, with its data:
// the term goes on, and its writes pass, without a moment in which no node leads.
func TestATermGoesOnAfterACrashOfADurableStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var journal transporttest.Journal
		store := transporttest.StartDurable(t, &journal)
		first, second := newCandidate(t, store, "node-a", election.Options{}), newCandidate(t, store, "node-b", election.Options{})
		var ended atomic.Bool
		terms := make(chan *election.Term, 2)
		first.run(t, func(ctx context.Context, term *election.Term) error {
			terms <- term
			err := serve(ctx, term)
			ended.Store(true)
			return err
		})
		synctest.Wait()
		second.run(t, serve)
		term := await.Receive(terms)
		guard := term.Guard()
		for i := range 10 {
			if _, err := guard.Set(t.Context(), key, []byte{byte(i)}); err != nil {
				t.Fatalf("write %d: %v", i, err)
			}
			time.Sleep(2*ttl + ttl/7)
			store.Crash(0)
			time.Sleep(ttl / 4)
			if err := store.Recover(); err != nil {
				t.Fatal(err)
			}
			first.conn.Restore()
			second.conn.Restore()
		}
		time.Sleep(2 * ttl)
		if ended.Load() || len(terms) > 0 {
			t.Error("the term ended")
		}
		if _, count := second.last(election.Active); count > 0 {
			t.Error("the second node led")
		}
		first.mustLead(t)
	})
}

// If the store is down for longer than the TTL, the term ends, and the release fails. The store
// then has the former lease for a whole lifetime. The next campaign of the node frees it, so that
// no node waits for that.
func TestTheLeaseOfAFormerTermDoesNotKeepANodeFromLeading(t *testing.T) {
	for _, rank := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			var journal transporttest.Journal
			store := transporttest.StartDurable(t, &journal)
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
			_ = node.stop()
		})
	}
}

// The term is over when the function fails, so no cause has its error.
func TestWhatALeaderFunctionFailsWithWhileItDrainsIsLogged(t *testing.T) {
	for name, test := range map[string]struct {
		end    func(context.Context) error
		logged string
	}{
		"it panics":           {func(context.Context) error { panic("cold") }, "the leader function panicked: cold"},
		"it returns an error": {func(context.Context) error { return errJammed }, "the press is jammed"},
		"it obeys":            {func(ctx context.Context) error { return ctx.Err() }, ""},
		"it says why":         {context.Cause, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log logbuffer.Buffer
			inBubble(t, election.Options{Logger: log.Logger()}, func(t *testing.T, first, _ *candidate) {
				first.run(t, func(ctx context.Context, _ *election.Term) error {
					await.Receive(ctx.Done())
					return test.end(ctx)
				})
				time.Sleep(ttl)
				first.mustLead(t)
				first.Resign()
				time.Sleep(ttl)
				_ = first.stop()
				if failed := strings.Contains(log.String(), "failed while it drained"); failed != (test.logged != "") || !strings.Contains(log.String(), test.logged) {
					t.Errorf("the log says\n%s\nwant %q", log.String(), test.logged)
				}
			})
		})
	}
}
