package election_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// stuck is an observer that blocks in one phase until the test unblocks it.
type stuck struct {
	in      election.Phase
	unblock chan struct{}
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
			withStore(t, func(t *testing.T, store *transporttest.Store) {
				observer := newStuck(test.in)
				first := newCandidate(t, store, "node-a", election.Options{Claim: []string{key}, Observer: observer.observe})
				second := newCandidate(t, store, "node-b", election.Options{})
				var calls atomic.Int64
				first.run(t, func(ctx context.Context, term *election.Term) error {
					calls.Add(1)
					return serve(ctx, term)
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
				if observer.running.Load() != 1 || (calls.Load() > 0) != test.led {
					t.Errorf("%d calls of the observer run, after %d of the function", observer.running.Load(), calls.Load())
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
				history := first.history()
				if observer.overlap.Load() || !slices.IsSortedFunc(history, func(a, b election.Status) int { return a.Since.Compare(b.Since) }) {
					t.Errorf("called twice at once: %t, delivered: %+v", observer.overlap.Load(), history)
				}
			})
		})
	}
}

func TestInvariant42RunReleasesTheLeaseAndThenWaitsForTheObserver(t *testing.T) {
	for in, within := range map[election.Phase]time.Duration{
		election.Claiming: time.Millisecond, election.Active: time.Millisecond, election.Draining: ttl, election.Released: time.Millisecond,
	} {
		withStore(t, func(t *testing.T, store *transporttest.Store) {
			observer := newStuck(in)
			first := newCandidate(t, store, "node-a", election.Options{Claim: []string{key}, Observer: observer.observe})
			first.run(t, serve)
			time.Sleep(ttl / 4)
			releases := first.requests("VDEL")
			first.cancel()
			time.Sleep(within)
			first.mustBeFree(t)
			if err, ended := first.ended(); ended || releases() != 1 {
				t.Errorf("%v: after %d releases, and before the observer, Run returned %v", in, releases(), err)
			}
			close(observer.unblock)
			if err := await.Receive(first.result); !errors.Is(err, context.Canceled) {
				t.Errorf("%v: Run returned %v", in, err)
			}
			if last := first.phases(); last[len(last)-1] != election.Released {
				t.Errorf("%v: the observer got %v", in, last)
			}
		})
	}
}

// What keeps the node from the lease changes all the time, and no queue for the slow observer grows.
func TestACampaignWaitsForItsObserver(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		var first atomic.Bool
		unblock := make(chan struct{})
		c := newStubborn(t, store, "node-a", election.Options{Observer: func(transition election.Status) {
			if transition.Cause != nil && !first.Swap(true) {
				await.Receive(unblock)
			}
		}})
		c.refuse(transport.ErrNotAuthorized)
		c.run(t, serve)
		time.Sleep(2 * ttl)
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
	})
}

func TestWhetherANodeLeadsAndWhyNotIsLoggedOnceForEachChange(t *testing.T) {
	var log logbuffer.Buffer
	var health fitness
	pair(t, election.Options{}, election.Options{Logger: log.Logger(), Health: health.check}, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		time.Sleep(5 * ttl)
		first.Resign()
		time.Sleep(ttl)
		second.mustLead(t)
		health.set(errJammed)
		time.Sleep(5 * ttl)
		health.set(nil) // for less than the hold-off
		time.Sleep(ttl / 3)
		health.set(errJammed)
		time.Sleep(5 * ttl)
		_, _ = first.stop(), second.stop()
		synctest.Wait() // what logs has ended
		const why = ` lease=press-7/active cause="unhealthy: the press is jammed"`
		for line, want := range map[string]int{
			`msg="standing by" lease=press-7/active` + "\n": 1, `msg="standing by"` + why: 1, "msg=leading lease=press-7/active\n": 1,
			`msg="no longer leading"` + why: 1, `msg="staying out of the election for a while"`: 1, "the health check failed": 2, "level=": 10,
		} {
			if got := strings.Count(log.String(), line); got != want {
				t.Errorf("%q is logged %d times, want %d, in\n%s", line, got, want, log.String())
			}
		}
	})
}

// One node goes through everything that can happen to it, one step after another.
func TestStatusFollowsTheWholeLifeOfANode(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
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

func TestAStatusIsJSONWithTheCauseAndTheTokenAsText(t *testing.T) {
	status := election.Status{Phase: election.Released, Since: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), Term: 3,
		Token: hlc.Token{Wall: 1000, Counter: 1, Node: "store"}, Leader: "node-a", Cause: errJammed}
	const want = `{"Phase":"released","Since":"2027-01-02T03:04:05Z","Term":3,"Token":"1000:1:store","Leader":"node-a",` +
		`"HoldOffUntil":"0001-01-01T00:00:00Z","Cause":"the press is jammed"}`
	if got, err := json.Marshal(status); err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}
