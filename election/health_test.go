package election_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAnUnhealthyLeaderHandsOverInOneRoundTripAndStaysOut(t *testing.T) {
	var health fitness
	pair(t, election.Options{Health: health.check, HealthEvery: every}, election.Options{}, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		time.Sleep(5 * ttl)
		requests, failed := first.requests("VDEL"), time.Now()
		health.set(errJammed)
		time.Sleep(ttl / 4)
		second.mustLead(t)
		active, _ := second.last(election.Active)
		if gap := active.Since.Sub(failed); gap > every+10*time.Millisecond || requests() != 1 {
			t.Errorf("the successor led %v after the failure, after %d requests; want the one that releases", gap, requests())
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
		again, _ := first.last(election.Active)
		if out := again.Since.Sub(cured); out < ttl/2*9/10 || out > ttl/2*11/10+every+10*time.Millisecond {
			t.Errorf("it led again after %v, want the hold-off", out)
		}
		want := []election.Phase{
			election.Standby, election.Active, election.Draining, election.Released,
			election.Standby /* because it is unhealthy */, election.Standby, election.Active,
		}
		if standby, _ := first.last(election.Standby); !slices.Equal(first.phases(), want) || standby.Cause != nil {
			t.Errorf("phases %v, want %v; healthy again it stands by because of %v", first.phases(), want, standby.Cause)
		}
	})
}

func TestACheckThatHangsCountsAsFailedAndHoldsUpNothingButTheEndOfRun(t *testing.T) {
	const timeout = ttl / 4
	withStore(t, func(t *testing.T, store *transporttest.Store) {
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
		first := newCandidate(t, store, "node-a", election.Options{Health: check, HealthEvery: every, HealthTimeout: timeout})
		second := newCandidate(t, store, "node-b", election.Options{})
		runBoth(t, first, second)
		time.Sleep(2 * ttl)
		hangs.Store(true)
		hung := time.Now()
		time.Sleep(every + timeout + 10*time.Millisecond)
		second.mustLead(t)
		drained, _ := first.last(election.Draining)
		if took := drained.Since.Sub(hung); took > every+timeout ||
			!errors.Is(drained.Cause, election.ErrUnhealthy) || !errors.Is(drained.Cause, context.DeadlineExceeded) {
			t.Errorf("drained after %v because of %v, want %v, ErrUnhealthy and DeadlineExceeded", took, drained.Cause, every+timeout)
		}
		first.cancel()
		time.Sleep(10 * ttl)
		if err, ended := first.ended(); ended {
			t.Errorf("Run returned %v while the check runs", err)
		}
		close(release)
		if err := await.Receive(first.result); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want Canceled", err)
		}
	})
}
