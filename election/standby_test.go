package election_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

func TestTheStandbyFunctionRunsWhileTheNodeWaitsAndReturnsBeforeAnythingIsClaimed(t *testing.T) {
	const coolingDown = ttl / 2
	var events journal
	pair(t, election.Options{}, election.Options{
		Claim: []string{key},
		Standby: func(ctx context.Context) error {
			events.add("warm")
			await.Receive(ctx.Done())
			time.Sleep(coolingDown)
			events.add("returned")
			return ctx.Err()
		},
		Observer: func(transition election.Status) { events.add(string(transition.Phase)) },
	}, func(t *testing.T, first, second *candidate) {
		first.run(t, serve)
		synctest.Wait()
		second.run(t, func(ctx context.Context, _ *election.Term) error {
			events.add("leads")
			await.Receive(ctx.Done())
			return nil
		})
		time.Sleep(5 * ttl)
		if want := "standby warm"; events.String() != want {
			t.Errorf("while it waits: %v, want %v", &events, want)
		}
		resigned := time.Now()
		first.Resign()
		time.Sleep(5 * ttl)
		if want := "standby warm returned claiming active leads"; events.String() != want {
			t.Errorf("then: %v, want %v", &events, want)
		}
		active, _ := second.last(election.Active)
		if took := active.Since.Sub(resigned); took < coolingDown || took > coolingDown+10*time.Millisecond {
			t.Errorf("it led after %v, its standby function takes %v to return", took, coolingDown)
		}
		second.Resign()
		time.Sleep(5 * ttl)
		if count := strings.Count(events.String(), "warm"); count != 2 {
			t.Errorf("the standby function ran %d times in two campaigns", count)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestInvariant45AStandbyFunctionThatFailsDoesNotKeepTheNodeFromLeading(t *testing.T) {
	for _, test := range []struct {
		name     string
		function func(context.Context) error
		logged   string
	}{
		{"it returns early", func(context.Context) error { return nil }, ""},
		{"it returns an error", func(context.Context) error { return errJammed }, "the press is jammed"},
		{"it panics", func(context.Context) error { panic("cold") }, "the standby function panicked: cold"},
		{"it panics in the end", func(ctx context.Context) error { await.Receive(ctx.Done()); panic("cold") }, "the standby function panicked: cold"},
		{"it ends its goroutine", func(context.Context) error { runtime.Goexit(); return nil }, "ended its goroutine"},
		{"it obeys", func(ctx context.Context) error { await.Receive(ctx.Done()); return ctx.Err() }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer // slog's handlers lock it
			var calls atomic.Int64
			pair(t, election.Options{}, election.Options{
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
				Standby: func(ctx context.Context) error {
					calls.Add(1)
					return test.function(ctx)
				},
			}, func(t *testing.T, first, second *candidate) {
				runBoth(t, first, second)
				time.Sleep(3 * ttl)
				first.Resign()
				time.Sleep(ttl)
				second.mustLead(t)
				if got := calls.Load(); got != 1 {
					t.Errorf("called %d times", got)
				}
				_, _ = first.stop(), second.stop()
				synctest.Wait() // what logs has ended
				if test.logged == "" && log.Len() > 0 || !strings.Contains(log.String(), test.logged) {
					t.Errorf("logged %q, want %q", log.String(), test.logged)
				}
			})
		})
	}
}

func TestTheLeaseIsReleasedIfTheStandbyFunctionDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var running atomic.Int64
		pairInBubble(t, election.Options{Standby: func(context.Context) error {
			if running.Add(1) > 1 {
				t.Error("two calls overlap")
			}
			defer running.Add(-1)
			await.Receive(release)
			return nil
		}}, election.Options{}, func(t *testing.T, first, second *candidate) {
			first.run(t, serve)
			synctest.Wait()
			second.run(t, serve)
			time.Sleep(ttl)
			second.mustLead(t)
			_ = second.stop()
			if _, terms := first.last(election.Active); terms != 0 {
				t.Error("it led while its standby function ran")
			}
			released, _ := first.last(election.Released)
			standby, _ := first.last(election.Standby)
			if !errors.Is(released.Cause, election.ErrNotReady) || !errors.Is(standby.Cause, election.ErrNotReady) {
				t.Errorf("released because of %v, stands by because of %v, want ErrNotReady", released.Cause, standby.Cause)
			}
			time.Sleep(5 * ttl)
			first.mustBeFree(t)
			close(release)
			time.Sleep(ttl/2 + ttl/10) // the hold-off
			first.mustLead(t)
			_ = first.stop()
		})
	})
}

func TestInvariant8NoTermStartsOnATenureThatIsOverWhenTheStandbyFunctionReturns(t *testing.T) {
	for _, test := range []struct {
		name string
		harm func(first, second *candidate)
		want error
	}{
		{"its connection is lost", func(first, _ *candidate) { first.conn.Cut() }, lease.ErrDeadlinePassed},
		{"another has the lease", func(_, second *candidate) {
			_, _ = second.client.Set(context.Background(), name, []byte("other:1"), transport.SetOptions{TTL: 5 * ttl})
		}, lease.ErrLost},
		{"Run's context ended", func(first, _ *candidate) { first.cancel() }, context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			pair(t, election.Options{TTL: ttl, Standby: func(ctx context.Context) error {
				await.Receive(ctx.Done())
				time.Sleep(ttl - ttl/10 - ttl/20) // less than a tenure
				return nil
			}}, election.Options{}, func(t *testing.T, first, second *candidate) {
				first.run(t, func(context.Context, *election.Term) error {
					t.Error("the function ran")
					return nil
				})
				synctest.Wait()
				first.mustLead(t) // in the eyes of the store
				test.harm(first, second)
				time.Sleep(3 * ttl)
				released, count := first.last(election.Released)
				if count != 1 || !errors.Is(released.Cause, test.want) {
					t.Errorf("released %d times, because of %v, want %v", count, released.Cause, test.want)
				}
				_ = first.stop()
			})
		})
	}
}

func TestInvariant2NoTermStartsAfterAStandbyFunctionInWhichTheProcessStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var machine suspendedClock
		pairInBubble(t, election.Options{
			Lease: lease.Options{Clock: machine.clock()},
			Standby: func(ctx context.Context) error {
				await.Receive(ctx.Done())
				machine.suspend(ttl)
				return nil
			},
		}, election.Options{}, func(t *testing.T, first, _ *candidate) {
			first.run(t, func(context.Context, *election.Term) error {
				t.Error("the function ran")
				return nil
			})
			synctest.Wait()
			if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrDeadlinePassed) {
				t.Errorf("released because of %v, want ErrDeadlinePassed", released.Cause)
			}
			_ = first.stop()
		})
	})
}

func TestInvariant42RunWaitsForItsStandbyFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Bool
		pairInBubble(t, election.Options{}, election.Options{Standby: func(ctx context.Context) error {
			running.Store(true)
			defer running.Store(false)
			await.Receive(ctx.Done())
			time.Sleep(5 * ttl)
			return nil
		}}, func(t *testing.T, first, second *candidate) {
			runBoth(t, first, second)
			_ = second.stop()
			if running.Load() {
				t.Error("Run returned before its standby function")
			}
			_ = first.stop()
		})
	})
}
