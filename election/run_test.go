package election_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestRunEndsWithItsContextOrItsClient(t *testing.T) {
	for _, state := range []string{"it leads", "it waits", "it is unhealthy", "it is held off"} {
		for want, end := range map[error]func(*transporttest.Store, *candidate){
			transport.ErrClosed:           func(_ *transporttest.Store, c *candidate) { _ = c.client.Close() },
			transport.ErrSessionTakenOver: func(s *transporttest.Store, c *candidate) { s.Connect("node-a") },
			context.Canceled:              func(_ *transporttest.Store, c *candidate) { c.cancel() },
		} {
			withStore(t, func(t *testing.T, store *transporttest.Store) {
				var health fitness
				ending := newCandidate(t, store, "node-a", election.Options{Health: health.check, HoldOff: time.Hour})
				other := newCandidate(t, store, "node-b", election.Options{})
				if state == "it waits" {
					runBoth(t, other, ending)
				} else {
					runBoth(t, ending, other)
				}
				if state == "it is held off" {
					ending.Resign()
				} else if state == "it is unhealthy" {
					health.set(errJammed)
				}
				if err := ending.Run(t.Context(), serve); err == nil || !strings.Contains(err.Error(), "running already") {
					t.Errorf("a second Run: %v", err)
				}
				time.Sleep(ttl)
				end(store, ending)
				time.Sleep(3 * ttl) // less than the hold-off
				if err, ended := ending.ended(); !ended || !errors.Is(err, want) {
					t.Errorf("%s: Run has returned %t, %v, want %v", state, ended, err, want)
				}
				if want == transport.ErrClosed {
					if err := ending.Run(t.Context(), serve); !errors.Is(err, want) {
						t.Errorf("Run with a closed client: %v, want ErrClosed", err)
					}
				}
			})
		}
	}
}

func TestInvariant50ARefusalNeverEndsAnElectionAndStandbySaysWhy(t *testing.T) {
	for _, test := range []struct {
		refusal error
		passes  bool // Acquire waits for it
	}{
		{transport.ErrNotAuthorized, true},
		{transport.ErrQuotaExceeded, true},
		{transport.ErrTimestampTooFarAhead, true},
		{transport.ErrFencingTokenRequired, true},
		{protocol.SyntaxError, false},
		{transport.ErrLockRule, false},
	} {
		for _, rank := range []int{0, 1} {
			withStore(t, func(t *testing.T, store *transporttest.Store) {
				c := newStubborn(t, store, "node-a", election.Options{Rank: rank})
				c.refuse(test.refusal)
				c.run(t, serve)
				time.Sleep(20 * ttl)
				if err, ended := c.ended(); ended {
					t.Fatalf("%v: Run returned %v", test.refusal, err)
				}
				if got := c.asked.Load(); got < 5 || got > 200 { // a pause is TTL/6 on average, soon
					t.Errorf("%v: %d requests in 20 TTL", test.refusal, got)
				}
				causes := 0
				for _, transition := range c.history() {
					if transition.Phase != election.Standby || transition.Cause != nil && !errors.Is(transition.Cause, test.refusal) {
						t.Errorf("%v: %+v", test.refusal, transition)
					}
					if transition.Cause != nil {
						causes++
					}
				}
				if causes == 0 || causes > 1 && test.passes || causes > 20 {
					t.Errorf("%v: %d Standbys with a cause", test.refusal, causes)
				}
				c.refuse(nil)
				time.Sleep(5 * ttl)
				c.mustLead(t)
			})
		}
	}
}

func TestInvariant42RunEndsAtAnyMomentAndLeavesNothing(t *testing.T) {
	const roundTrip = ttl / 50
	for when := time.Duration(0); when < 4*ttl; when += ttl/17 + time.Millisecond {
		withStore(t, func(t *testing.T, store *transporttest.Store) {
			var working atomic.Int64 // calls of the functions that have not returned
			works := func(until func()) error {
				working.Add(1)
				defer working.Add(-1)
				until()
				time.Sleep(every)
				return nil
			}
			options := election.Options{
				Claim: []string{key}, FailBackAfter: ttl, HealthEvery: every,
				Health:   func(context.Context) error { return works(func() {}) },
				Observer: func(election.Status) { _ = works(func() {}) },
			}
			candidates := ranked(t, store, 2, options)
			for i := range candidates {
				c := candidates[len(candidates)-1-i]
				c.conn.SetFault(func(transporttest.Request) transporttest.Fault {
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
			candidates[0].mustBeFree(t)
			if request := candidates[0].request(t); request != "" {
				t.Errorf("after %v: the fail-back request %q is left", when, request)
			}
		})
	}
}

// Run ends while the request of its campaign is under way, and the program closes its client.
func TestACampaignThatWasGivenUpIsFreedBeforeRunReturns(t *testing.T) {
	pair(t, election.Options{}, election.Options{}, func(t *testing.T, c, other *candidate) {
		var lost atomic.Bool
		c.conn.SetFault(func(r transporttest.Request) transporttest.Fault {
			if strings.Contains(string(r.Payload), "\r\nSET\r\n") {
				time.AfterFunc(ttl/100, c.cancel) // under way
			}
			// The first request to free the lease is lost.
			lose := strings.Contains(string(r.Payload), "\r\nVDEL\r\n") && lost.CompareAndSwap(false, true)
			return transporttest.Fault{HoldRequest: ttl / 20, LoseRequest: lose}
		})
		c.run(t, serve)
		await.Receive(c.result)
		_ = c.client.Close()
		time.Sleep(ttl / 10) // what was under way has arrived
		other.mustBeFree(t)
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
			{"the same TTL twice", election.Options{TTL: ttl, Lease: lease.Options{TTL: ttl}}, "set Options.TTL"},
			{"a negative hold-off", election.Options{HoldOff: -1}, "HoldOff"},
			{"an acquire delay beside the rank", election.Options{Lease: lease.Options{AcquireDelay: ttl}}, "Options.Rank"},
			{"a function beside the observer", election.Options{Lease: lease.Options{OnWaiting: func(error) {}}}, "Options.Observer"},
			{"a negative pause between checks", election.Options{HealthEvery: -1}, "HealthEvery"},
			{"a negative rank", election.Options{Rank: -1}, "the best rank is 0"},
			{"a rank that would wait forever", election.Options{Rank: 1 << 30}, "the worst is 100"},
			{"a negative TTL", election.Options{TTL: -ttl, Rank: 1}, "TTL -2s"},
			{"a lease that could not be held", election.Options{TTL: ttl, Lease: lease.Options{RenewEvery: ttl}}, "RenewEvery"},
		} {
			if _, err := election.New(client, name, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want an error that says %q", test.name, err, test.want)
			}
		}
	})
}
