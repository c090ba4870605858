package election_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// One node goes through everything that can happen to it, one step after another.
func TestStatusFollowsTheWholeLifeOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		var health fitness
		var observing, claiming, draining atomic.Bool // what is to be slow
		proceed := make(chan struct{})
		hold := func(slow *atomic.Bool) {
			if slow.Swap(false) {
				await.Receive(proceed)
			}
		}
		options := election.Options{
			Claim: []string{key}, HoldOff: 3 * ttl, HealthEvery: every, Health: health.check,
			Observer: func(transition election.Status) {
				if transition.Phase == election.Claiming {
					hold(&claiming)
				}
				hold(&observing)
			},
		}
		node := newStubborn(t, store, "node-a", options)
		other := newCandidate(t, store, "node-b", election.Options{HoldOff: time.Hour})
		lead := func(ctx context.Context, _ *election.Term) error {
			await.Receive(ctx.Done())
			hold(&draining)
			return nil
		}
		var since time.Time // the Since before the step
		for _, step := range []struct {
			name    string
			do      func()
			phase   election.Phase
			term    int
			leader  string
			cause   error
			heldOff bool
		}{
			{"before the first Run", func() {}, election.Stopped, 0, "", nil, false},
			{"it waits for another leader", func() {
				other.run(t, serve)
				synctest.Wait()
				node.run(t, lead)
			}, election.Standby, 0, "node-b", nil, false},
			{"the lease is free, and the store refuses it", func() {
				node.refuse(transport.ErrNotAuthorized)
				_ = other.stop()
				time.Sleep(ttl / 4)
			}, election.Standby, 0, "", transport.ErrNotAuthorized, false},
			{"another leader follows", func() {
				other = newCandidate(t, store, "node-c", election.Options{HoldOff: time.Hour})
				other.run(t, serve)
			}, election.Standby, 0, "node-c", transport.ErrNotAuthorized, false},
			{"nothing keeps it from the lease any more", func() {
				node.refuse(nil)
				time.Sleep(ttl)
			}, election.Standby, 0, "node-c", nil, false},
			{"it is unhealthy", func() {
				health.set(errJammed)
				time.Sleep(2 * every)
			}, election.Standby, 0, "", errJammed, false},
			{"it is healthy again", func() {
				health.set(nil)
				time.Sleep(2 * every)
			}, election.Standby, 0, "node-c", nil, false},
			{"it claims its keys", func() {
				claiming.Store(true)
				_ = other.stop()
				time.Sleep(ttl / 4)
			}, election.Claiming, 1, "node-a", nil, false},
			{"it leads", func() { proceed <- struct{}{} }, election.Active, 1, "node-a", nil, false},
			{"it drains", func() {
				draining.Store(true)
				node.Resign()
			}, election.Draining, 1, "node-a", election.ErrResigned, false},
			{"it has released, and the observer does not know it yet", func() {
				observing.Store(true)
				proceed <- struct{}{}
			}, election.Released, 1, "", election.ErrResigned, false},
			{"it is held off", func() { proceed <- struct{}{} }, election.Released, 1, "", election.ErrResigned, true},
			{"it leads again", func() { time.Sleep(6 * ttl) }, election.Active, 2, "node-a", nil, false},
			{"there is no store, and its tenure is over", func() {
				node.conn.Cut()
				time.Sleep(3 * ttl)
			}, election.Standby, 2, "", transport.ErrNotSent, false},
			{"the store is back", func() {
				node.conn.Restore()
				time.Sleep(2 * ttl)
			}, election.Active, 3, "node-a", nil, false},
			{"it is unhealthy while it leads, and then held off", func() {
				health.set(errJammed)
				time.Sleep(2 * every)
				health.set(nil)
				time.Sleep(2 * every)
			}, election.Standby, 3, "", election.ErrUnhealthy, true},
			{"it has stopped", func() { _ = node.stop() }, election.Stopped, 3, "", context.Canceled, false},
		} {
			step.do()
			synctest.Wait()
			status := node.Status()
			if status.Phase != step.phase || status.Term != step.term || status.Leader != step.leader {
				t.Errorf("%s: %v; want %v, term %d, leader %q", step.name, status, step.phase, step.term, step.leader)
			}
			if !errors.Is(status.Cause, step.cause) {
				t.Errorf("%s: cause %v, want %v", step.name, status.Cause, step.cause)
			}
			if heldOff := time.Until(status.HoldOffUntil) > 0; heldOff != step.heldOff || heldOff == status.HoldOffUntil.IsZero() {
				t.Errorf("%s: held off until %v, want %v", step.name, status.HoldOffUntil, step.heldOff)
			}
			if has := !status.Token.IsZero(); has != (step.phase != election.Standby && step.phase != election.Stopped) {
				t.Errorf("%s: token %v", step.name, status.Token)
			}
			if status.Since.Before(since) || status.Since.After(time.Now()) {
				t.Errorf("%s: since %v, before that %v", step.name, status.Since, since)
			}
			since = status.Since
			if history := node.history(); step.phase != election.Stopped && step.name != "it has released, and the observer does not know it yet" {
				last := history[len(history)-1]
				if last.Phase != status.Phase || !last.Since.Equal(status.Since) || last.Token != status.Token || !errors.Is(last.Cause, status.Cause) {
					t.Errorf("%s: %v, and the observer got %v", step.name, status, last)
				}
			}
		}
	})
}

// A leader with a clock that says that the tenure is over does not lead, though no timer of it
// has fired.
func TestStatusNamesNoLeaderWhoseTenureIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var machine suspendedClock
		c := newCandidate(t, transporttest.Start(t), "node-a", election.Options{
			Lease: lease.Options{Clock: machine.clock(), Holder: "press 7"},
		})
		c.run(t, serve)
		synctest.Wait()
		if leader := c.Status().Leader; leader != "press 7" {
			t.Errorf("%q leads, want press 7", leader)
		}
		machine.suspend(ttl)
		if status := c.Status(); status.Leader != "" || status.Phase != election.Active {
			t.Errorf("after the deadline: %v", status)
		}
		_ = c.stop()
	})
}

// Status is called in each function of the Options, and all the time beside them.
func TestStatusNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *candidate
		calls := make(map[string]int) // by phase; used by one goroutine at a time
		options := election.Options{
			Health:   func(context.Context) error { _ = c.Status(); return nil },
			Standby:  func(ctx context.Context) error { _ = c.Status(); return nil },
			Observer: func(election.Status) { calls[string(c.Status().Phase)]++ },
		}
		store := transporttest.Start(t)
		store.Authorize(func(string, statestore.Verb, string) bool { return time.Now().Second() > 20 })
		c = newCandidate(t, store, "node-a", options)
		c.run(t, func(ctx context.Context, _ *election.Term) error {
			if status := c.Status(); status.Phase != election.Active {
				t.Errorf("in the leader function: %v", status)
			}
			await.Receive(ctx.Done())
			return nil
		})
		time.Sleep(30 * time.Second)
		_ = c.stop()
		for _, phase := range []string{"standby", "active", "draining", "released"} {
			if calls[phase] == 0 {
				t.Errorf("not seen in %s: %v", phase, calls)
			}
		}
	})
}

func TestLogsAndJSONShowTheCauseAndTheTokenAsText(t *testing.T) {
	status := election.Status{Phase: election.Released, Since: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), Term: 3,
		Token: hlc.Token{Wall: 1000, Counter: 1, Node: "store"}, Leader: "node-a", Cause: errJammed}
	const want = `{"Phase":"released","Since":"2027-01-02T03:04:05Z","Term":3,"Token":"1000:1:store","Leader":"node-a",` +
		`"HoldOffUntil":"0001-01-01T00:00:00Z","Cause":"the press is jammed"}`
	if got, err := json.Marshal(status); err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("", "value", status)
	if !strings.Contains(log.String(), `"value":`+want) {
		t.Errorf("slog: %s", &log)
	}
	log.Reset()
	slog.New(slog.NewTextHandler(&log, nil)).Info("", "value", status)
	for _, part := range []string{"Phase:released", "Token:1000:1:store", "Cause:the press is jammed"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("a handler of text: no %s in %s", part, &log)
		}
	}
}

// A function for metrics that hangs must not make a status page show a leader of long ago.
func TestAFunctionOfTheClientThatBlocksDoesNotDelayTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		open := make(chan struct{})
		first := newCandidate(t, store, "node-a", election.Options{})
		second := &candidate{}
		second.client, second.conn = store.Client(t, "node-b", transport.ClientOptions{Trace: &transport.Trace{
			Lost: func(transport.ConnectionStatus) { await.Receive(open) },
		}})
		second.elect(t, election.Options{})
		t.Cleanup(func() { close(open) }) // before the client is closed, which waits for the function
		lead := func(ctx context.Context, _ *election.Term) error { await.Receive(ctx.Done()); return nil }
		first.run(t, lead)
		time.Sleep(ttl)
		second.run(t, lead)
		time.Sleep(ttl)
		second.conn.Cut()
		time.Sleep(20 * ttl)
		if s := second.Status(); !errors.Is(s.Cause, transport.ErrNotSent) {
			t.Errorf("without a connection for 20 TTLs the status is %+v", s)
		}
	})
}
