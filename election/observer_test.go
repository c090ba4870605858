package election_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A node whose observer blocks leads and releases as if it did not. Its next campaign waits, and so does the end of Run.
func TestInvariants42And45AnObserverThatBlocksHoldsUpNoOtherNode(t *testing.T) {
	for _, in := range []election.Phase{election.Standby, election.Claiming, election.Active, election.Draining, election.Released} {
		t.Run(string(in), func(t *testing.T) {
			withStore(t, func(t *testing.T, store *transporttest.Store) {
				var running, most atomic.Int64 // calls
				unblock := make(chan struct{})
				first := newCandidate(t, store, "node-a", election.Options{Claim: []string{key}, Observer: func(status election.Status) {
					most.Store(max(most.Load(), running.Add(1)))
					defer running.Add(-1)
					if status.Phase == in {
						await.Receive(unblock)
					}
				}})
				second := newCandidate(t, store, "node-b", election.Options{})
				first.run(t, serve)
				synctest.Wait()
				second.run(t, serve)
				time.Sleep(3 * ttl)
				if in != election.Standby {
					first.mustLead(t)
				}
				first.Resign()
				time.Sleep(10 * time.Millisecond)
				second.mustLead(t)
				_ = second.stop()
				time.Sleep(20 * ttl)
				first.mustBeFree(t)
				first.cancel()
				if err, ended := first.ended(); ended {
					t.Errorf("before the observer Run returned %v", err)
				}
				close(unblock)
				if err := await.Receive(first.result); !errors.Is(err, context.Canceled) {
					t.Errorf("Run returned %v", err)
				}
				want := []election.Phase{election.Standby, election.Claiming, election.Active, election.Draining, election.Released}
				if got := first.phases(); in != election.Standby && !slices.Equal(got, want) && !slices.Equal(got, append(want, election.Standby)) || most.Load() > 1 {
					t.Errorf("the observer got %v, %d at once", got, most.Load())
				}
			})
		})
	}
}

// One node goes through everything that can happen to it, one step after another.
func TestStatusAndLogFollowTheWholeLifeOfANode(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		var health fitness
		var log logbuffer.Buffer
		node := newStubborn(t, store, "node-a", election.Options{
			Claim: []string{key}, HoldOff: 3 * ttl, HealthEvery: every, Health: health.check, Logger: log.Logger(),
		})
		other := newCandidate(t, store, "node-b", election.Options{HoldOff: time.Hour})
		const windingUp = ttl / 8
		for _, step := range []struct {
			name   string
			do     func()
			phase  election.Phase
			leader string
			cause  error
			logs   string // empty: it is not checked
		}{
			{"before the first Run", func() {}, election.Stopped, "", nil, ""},
			{"it waits for another leader", func() {
				other.run(t, serve)
				synctest.Wait()
				node.run(t, func(ctx context.Context, _ *election.Term) error {
					await.Receive(ctx.Done())
					time.Sleep(windingUp)
					return nil
				})
			}, election.Standby, "node-b", nil, `msg="standing by" lease=press-7/active` + "\n"},
			{"the lease is free, and the store refuses it", func() {
				node.refuse(transport.ErrNotAuthorized)
				_ = other.stop()
				time.Sleep(ttl / 4)
			}, election.Standby, "", transport.ErrNotAuthorized, ""},
			{"nothing keeps it from the lease any more, but another leader", func() {
				other = newCandidate(t, store, "node-c", election.Options{HoldOff: time.Hour})
				other.run(t, serve)
				node.refuse(nil)
				time.Sleep(ttl)
			}, election.Standby, "node-c", nil, ""},
			{"it is unhealthy", func() {
				health.set(errJammed)
				time.Sleep(2 * every)
			}, election.Standby, "", errJammed, `msg="standing by" lease=press-7/active cause="unhealthy: the press is jammed"`},
			{"it leads", func() {
				health.set(nil)
				_ = other.stop()
				time.Sleep(ttl)
			}, election.Active, "node-a", nil, "msg=leading lease=press-7/active"},
			{"it drains", func() { node.Resign() }, election.Draining, "node-a", election.ErrResigned, `msg="no longer leading" lease=press-7/active cause=resigned`},
			{"it is held off", func() { time.Sleep(2 * windingUp) }, election.Released, "", election.ErrResigned, `msg="staying out of the election for a while"`},
			{"it leads again", func() { time.Sleep(6 * ttl) }, election.Active, "node-a", nil, ""},
			{"there is no store, and its tenure is over", func() {
				node.conn.Cut()
				time.Sleep(3 * ttl)
			}, election.Standby, "", transport.ErrNotSent, ""},
			{"it has stopped", func() { _ = node.stop() }, election.Stopped, "", context.Canceled, ""},
		} {
			step.do()
			synctest.Wait()
			status := node.Status()
			if status.Phase != step.phase || status.Leader != step.leader || !errors.Is(status.Cause, step.cause) || status.Since.After(time.Now()) {
				t.Errorf("%s: %v; want %v, leader %q, cause %v", step.name, status, step.phase, step.leader, step.cause)
			}
			if has := !status.Token.IsZero(); has != (step.phase != election.Standby && step.phase != election.Stopped) {
				t.Errorf("%s: token %v", step.name, status.Token)
			}
			if !strings.Contains(log.String(), step.logs) {
				t.Errorf("%s: %q is not in\n%s", step.name, step.logs, log.String())
			}
			if history := node.history(); len(history) > 0 && step.phase != election.Stopped {
				last := history[len(history)-1]
				if last.Phase != status.Phase || !last.Since.Equal(status.Since) || last.Token != status.Token || !errors.Is(last.Cause, status.Cause) {
					t.Errorf("%s: %v, and the observer got %v", step.name, status, last)
				}
			}
		}
	})
}
