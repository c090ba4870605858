package election_test

import (
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
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAnUnhealthyLeaderHandsOverInOneRoundTripAndStaysOut(t *testing.T) {
	var health fitness
	const windingUp = ttl / 10
	pair(t, election.Options{Health: health.check, HealthEvery: every}, election.Options{}, func(t *testing.T, first, second *candidate) {
		var returned time.Time
		var count func() int64
		first.run(t, func(ctx context.Context, _ *election.Term) error {
			await.Receive(ctx.Done())
			time.Sleep(windingUp)
			returned, count = time.Now(), first.requests("")
			return nil
		})
		synctest.Wait()
		second.run(t, serve)
		time.Sleep(5 * ttl)
		first.mustLead(t)
		failed := time.Now()
		health.set(errJammed)
		time.Sleep(ttl / 4)
		second.mustLead(t)
		if detected := returned.Sub(failed) - windingUp; detected > every {
			t.Errorf("the failure was noticed after %v, the check runs every %v", detected, every)
		}
		active, _ := second.last(election.Active)
		if gap := active.Since.Sub(returned); gap > 10*time.Millisecond {
			t.Errorf("the successor led %v after the function returned", gap)
		}
		if got := count(); got != 1 {
			t.Errorf("the hand-over took %d requests, want the one that releases", got)
		}
		for _, phase := range []election.Phase{election.Draining, election.Released, election.Standby} {
			if transition, _ := first.last(phase); !errors.Is(transition.Cause, election.ErrUnhealthy) || !errors.Is(transition.Cause, errJammed) {
				t.Errorf("%v because of %v, want ErrUnhealthy and the check's error", phase, transition.Cause)
			}
		}
		_ = second.stop()
		time.Sleep(5 * ttl)
		first.mustBeFree(t)
		cured := time.Now()
		health.set(nil)
		time.Sleep(ttl)
		first.mustLead(t)
		again, _ := first.last(election.Active)
		if out := again.Since.Sub(cured); out < ttl/2*9/10 || out > ttl/2*11/10+every+10*time.Millisecond {
			t.Errorf("it led again after %v, want the hold-off", out)
		}
		want := []election.Phase{
			election.Standby, election.Active, election.Draining, election.Released,
			election.Standby /* because it is unhealthy */, election.Standby, election.Active,
		}
		if got := first.phases(); !slices.Equal(got, want) {
			t.Errorf("phases %v, want %v", got, want)
		}
		if standby, _ := first.last(election.Standby); standby.Cause != nil {
			t.Errorf("healthy again it stands by because of %v", standby.Cause)
		}
		_ = first.stop()
	})
}

func TestAnUnhealthyStandbyDoesNotCampaign(t *testing.T) {
	for _, test := range []struct {
		name    string
		atFirst error
	}{
		{"unhealthy from the beginning", errJammed},
		{"unhealthy while it waits", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var health fitness
			health.set(test.atFirst)
			pair(t, election.Options{}, election.Options{Health: health.check, HealthEvery: every}, func(t *testing.T, first, second *candidate) {
				runBoth(t, first, second)
				time.Sleep(3 * ttl)
				health.set(errJammed)
				time.Sleep(ttl)
				if standby, _ := second.last(election.Standby); !errors.Is(standby.Cause, election.ErrUnhealthy) {
					t.Errorf("it stays out because of %v, want ErrUnhealthy", standby.Cause)
				}
				count := second.requests("")
				_ = first.stop()
				time.Sleep(5 * ttl)
				if _, terms := second.last(election.Active); terms != 0 || count() != 0 {
					t.Errorf("%d terms, %d requests while it was unhealthy", terms, count())
				}
				health.set(nil)
				time.Sleep(every + 10*time.Millisecond) // no hold-off: it did not lead
				second.mustLead(t)
				_ = second.stop()
			})
		})
	}
}

func TestInvariant19AStandbyThatBecomesUnhealthyInMidAcquisitionLeavesNoSilentHolder(t *testing.T) {
	var health fitness
	pair(t, election.Options{Health: health.check, HealthEvery: every}, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.conn.SetFault(func(request transport.Request) transporttest.Fault {
			// Applied, but it does not learn of that.
			return transporttest.Fault{LoseReply: strings.Contains(string(request.Payload), "\r\nSET\r\n")}
		})
		first.run(t, serve)
		time.Sleep(ttl / 2)
		first.mustLead(t) // in the eyes of the store
		health.set(errJammed)
		time.Sleep(2 * every)
		second.mustBeFree(t)
		if _, terms := first.last(election.Active); terms != 0 {
			t.Error("it led")
		}
		_ = first.stop()
	})
}

func TestTheFirstCheckComesBeforeTheFirstCampaign(t *testing.T) {
	const takes = ttl / 4
	pair(t, election.Options{Health: func(context.Context) error {
		time.Sleep(takes)
		return nil
	}}, election.Options{}, func(t *testing.T, first, _ *candidate) {
		count := first.requests("")
		began := time.Now()
		first.run(t, serve)
		time.Sleep(takes - 1)
		if count() != 0 || len(first.phases()) != 0 {
			t.Errorf("%d requests, phases %v, before the check returned", count(), first.phases())
		}
		time.Sleep(ttl)
		if active, _ := first.last(election.Active); active.Since.Sub(began) != takes {
			t.Errorf("it led after %v, the first check takes %v", active.Since.Sub(began), takes)
		}
		_ = first.stop()
	})
}

func TestACheckThatHangsCountsAsFailedAndHoldsUpNothingButTheEndOfRun(t *testing.T) {
	const timeout = ttl / 4
	var hangs atomic.Bool
	var running atomic.Int64
	release := make(chan struct{})
	check := func(context.Context) error {
		if running.Add(1) > 1 {
			t.Error("two checks overlap")
		}
		defer running.Add(-1)
		if hangs.Load() {
			await.Receive(release) // and does not care about its context
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		release = make(chan struct{}) // of the bubble
		store := transporttest.Start(t)
		first := newCandidate(t, store, "node-a", election.Options{Health: check, HealthEvery: every, HealthTimeout: timeout})
		second := newCandidate(t, store, "node-b", election.Options{})
		runBoth(t, first, second)
		time.Sleep(2 * ttl)
		hangs.Store(true)
		hung := time.Now()
		time.Sleep(every + timeout + 10*time.Millisecond)
		second.mustLead(t)
		drained, _ := first.last(election.Draining)
		if took := drained.Since.Sub(hung); took > every+timeout {
			t.Errorf("drained after %v, want %v", took, every+timeout)
		}
		if !errors.Is(drained.Cause, election.ErrUnhealthy) || !errors.Is(drained.Cause, context.DeadlineExceeded) {
			t.Errorf("cause %v, want ErrUnhealthy and DeadlineExceeded", drained.Cause)
		}
		first.cancel()
		time.Sleep(10 * ttl)
		select {
		case err := <-first.result:
			t.Errorf("Run returned %v while the check runs", err)
		default:
		}
		close(release)
		if err := await.Receive(first.result); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want Canceled", err)
		}
		_ = second.stop()
	})
}

func TestTheCheckOfAWaitingNodeThatHungIsCalledAgainWhenItHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		calls := 0
		first := newCandidate(t, store, "node-a", election.Options{HealthEvery: every, Health: func(context.Context) error {
			if calls++; calls == 1 {
				time.Sleep(5 * ttl)
			}
			return nil
		}})
		first.run(t, serve)
		time.Sleep(5*ttl + every - 1)
		if _, terms := first.last(election.Active); terms != 0 {
			t.Error("it led on the word of a check that was late")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		first.mustLead(t)
		_ = first.stop()
	})
}

func TestInvariant45ACheckThatPanicsMakesTheNodeUnhealthy(t *testing.T) {
	for name, fail := range map[string]func(){
		"panicked":            func() { panic(errJammed) },
		"ended its goroutine": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			var failing atomic.Bool
			pair(t, election.Options{HealthEvery: every, Health: func(context.Context) error {
				if failing.Load() {
					fail()
				}
				return nil
			}}, election.Options{}, func(t *testing.T, first, second *candidate) {
				runBoth(t, first, second)
				failing.Store(true)
				time.Sleep(every + 10*time.Millisecond)
				second.mustLead(t)
				released, _ := first.last(election.Released)
				if !errors.Is(released.Cause, election.ErrUnhealthy) || !strings.Contains(released.Cause.Error(), "the health check "+name) {
					t.Errorf("cause %v", released.Cause)
				}
				_, _ = first.stop(), second.stop()
			})
		})
	}
}

func TestInvariant29ANodeWhoseHealthFlapsLeavesOthersTheirTurn(t *testing.T) {
	calls := 0
	pair(t, election.Options{HealthEvery: every, Health: func(context.Context) error {
		if calls++; calls%2 == 0 {
			return errJammed
		}
		return nil
	}}, election.Options{}, func(t *testing.T, first, second *candidate) {
		second.conn.Silence(true) // even if it learns of vacancies only by its timer
		runBoth(t, first, second)
		time.Sleep(5 * ttl)
		second.mustLead(t)
		_, before := first.last(election.Active)
		time.Sleep(20 * ttl)
		second.mustLead(t)
		if _, after := first.last(election.Active); after != before {
			t.Errorf("it led %d times more beside a healthy leader", after-before)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestAHoldOffRestartsAfterAnUnhealthySpell(t *testing.T) {
	const holdOff = 4 * ttl
	var health fitness
	pair(t, election.Options{Health: health.check, HealthEvery: every, HoldOff: holdOff}, election.Options{}, func(t *testing.T, first, _ *candidate) {
		first.run(t, serve)
		time.Sleep(2 * ttl)
		first.Resign()
		time.Sleep(holdOff / 2)
		health.set(errJammed)
		time.Sleep(2 * every)
		if standby, _ := first.last(election.Standby); !errors.Is(standby.Cause, election.ErrUnhealthy) {
			t.Errorf("it stays out because of %v, want ErrUnhealthy", standby.Cause)
		}
		health.set(nil)
		cured := time.Now()
		time.Sleep(2 * holdOff)
		if active, _ := first.last(election.Active); active.Since.Sub(cured) < holdOff*9/10 {
			t.Errorf("it led %v after it was healthy again, the hold-off is %v", active.Since.Sub(cured), holdOff)
		}
		_ = first.stop()
	})
}

func TestACheckThatFailsForLongIsNoFloodOfWarnings(t *testing.T) {
	var health fitness
	var log strings.Builder
	pair(t, election.Options{Health: health.check, HealthEvery: every, Logger: slog.New(slog.NewTextHandler(&log, nil))}, election.Options{}, func(t *testing.T, first, _ *candidate) {
		health.set(errJammed)
		first.run(t, serve)
		time.Sleep(10 * time.Minute)
		health.set(nil)
		time.Sleep(ttl)
		health.set(errJammed)
		time.Sleep(ttl)
		_ = first.stop()
		synctest.Wait()
		if lines := strings.Count(log.String(), "the health check failed"); lines != 2 { // one for each spell
			t.Errorf("%d warnings in 10 minutes\n%s", lines, log.String())
		}
	})
}
