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
			Observer: func(transition election.Transition) {
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
				if last.Phase != status.Phase || !last.At.Equal(status.Since) || last.Token != status.Token || !errors.Is(last.Cause, status.Cause) {
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
			Observer: func(election.Transition) { calls[c.Status().Phase.String()]++ },
			Lease:    lease.Options{OnWaiting: func(error) { _ = c.Status() }},
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

func TestLogsAndJSONShowWords(t *testing.T) {
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	token := hlc.Token{Wall: 1000, Counter: 1, Node: "store"}
	for _, test := range []struct {
		value      any
		line, json string
	}{
		{election.Active, "active", `"active"`},
		{election.Phase(77), "phase 77", `"phase 77"`},
		{
			election.Transition{Phase: election.Released, At: at, Token: token, Cause: election.ErrResigned},
			"released, token 1000:1:store: resigned",
			`{"phase":"released","at":"2027-01-02T03:04:05Z","token":"1000:1:store","cause":"resigned"}`,
		},
		{
			election.Transition{At: at}, "standby", `{"phase":"standby","at":"2027-01-02T03:04:05Z"}`,
		},
		{
			election.Status{Phase: election.Active, Since: at, Term: 3, Token: token, Leader: "node-a"},
			`active, term 3, token 1000:1:store, "node-a" leads`,
			`{"phase":"active","since":"2027-01-02T03:04:05Z","term":3,"leader":"node-a","token":"1000:1:store"}`,
		},
		{
			election.Status{Since: at, Term: 1, HoldOffUntil: at.Add(time.Minute), Cause: errJammed},
			"standby, term 1, held off until 2027-01-02T03:05:05Z: the press is jammed",
			`{"phase":"standby","since":"2027-01-02T03:04:05Z","term":1,"hold_off_until":"2027-01-02T03:05:05Z","cause":"the press is jammed"}`,
		},
		{election.Status{}, "standby", `{"phase":"standby","since":"0001-01-01T00:00:00Z","term":0}`},
	} {
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("", "value", test.value)
		var line struct{ Value json.RawMessage }
		if err := json.Unmarshal(log.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if got := string(line.Value); got != test.json {
			t.Errorf("slog: %s, want %s", got, test.json)
		}
		if got := test.value.(interface{ String() string }).String(); got != test.line {
			t.Errorf("String: %s, want %s", got, test.line)
		}
		log.Reset()
		slog.New(slog.NewTextHandler(&log, nil)).Info("", "value", test.value)
		if strings.Contains(log.String(), "{") {
			t.Errorf("a handler of text: %s", &log)
		}
	}
}

func TestTheJSONOfAStatusAndOfATransitionHasTheCauseAsText(t *testing.T) {
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		value any
		want  string
	}{
		{
			election.Status{Since: at, Term: 1, Cause: errJammed},
			`{"Phase":"standby","Since":"2027-01-02T03:04:05Z","Term":1,"Token":"","Leader":"","HoldOffUntil":"0001-01-01T00:00:00Z","Cause":"the press is jammed"}`,
		},
		{
			election.Transition{Phase: election.Active, At: at, Token: hlc.Token{Wall: 1000, Counter: 1, Node: "store"}},
			`{"Phase":"active","At":"2027-01-02T03:04:05Z","Token":"1000:1:store","Cause":""}`,
		},
	} {
		if got, err := json.Marshal(test.value); err != nil || string(got) != test.want {
			t.Errorf("%s, %v, want %s", got, err, test.want)
		}
	}
}

func TestLogsShowOptionsWithoutTheirFunctions(t *testing.T) {
	options := election.Options{
		TTL: 2 * time.Second, Rank: 1, Claim: []string{"press-7/setpoint"}, Lease: lease.Options{OnWaiting: func(error) {}},
		Standby: func(context.Context) error { return nil }, Health: func(context.Context) error { return nil },
		Observer: func(election.Transition) {}, Logger: slog.Default(),
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("", "options", options)
	for _, want := range []string{
		`"options":{"TTL":"2s","HoldOff":"0s",`, `"Lease":{"TTL":"0s",`, `"Claim":["press-7/setpoint"]`, `"HealthFailures":0`, `"Rank":1`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in %s", want, &log)
		}
	}
}
