package election_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// request returns the value of the key of requests.
func (c *candidate) request(t *testing.T) string {
	t.Helper()
	entry, err := c.client.Get(t.Context(), requestsKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(entry.Value)
}

// ranked is a set of candidates, of which the one at index n has rank n. They are
// node-0, node-1 and so on.
func ranked(t *testing.T, store *transporttest.Store, count int, options election.Options) []*candidate {
	t.Helper()
	candidates := make([]*candidate, count)
	for rank := range count {
		options.Rank = rank
		candidates[rank] = newCandidate(t, store, fmt.Sprintf("node-%d", rank), options)
	}
	return candidates
}

func TestAFreeLeaseGoesToTheBestRank(t *testing.T) {
	for _, silence := range []bool{false, true} {
		for _, dies := range []bool{false, true} {
			for lifetime := ttl; lifetime < 3*ttl; lifetime += ttl / 7 {
				withStore(t, func(t *testing.T, store *transporttest.Store) {
					leader := newCandidate(t, store, "leader", election.Options{HoldOff: 10 * ttl})
					leader.run(t, serve)
					synctest.Wait()
					candidates := ranked(t, store, 4, election.Options{})
					for i := range candidates {
						c := candidates[len(candidates)-1-i] // the worst comes first
						c.conn.Silence(silence)
						c.run(t, serve)
						synctest.Wait()
					}
					time.Sleep(lifetime)
					leader.mustLead(t)
					if dies {
						leader.conn.Cut()
					} else {
						leader.Resign()
					}
					time.Sleep(2 * ttl)
					candidates[0].mustLead(t)
				})
			}
		}
	}
}

func TestANodeThatCrashedAsTheLeaderStaysOutForTTLAndHoldOff(t *testing.T) {
	for _, holder := range []string{"", "press 7"} { // by client id
		withStore(t, func(t *testing.T, store *transporttest.Store) {
			options := election.Options{FailBackAfter: failBackAfter, Lease: lease.Options{Holder: holder}}
			crashing := newCandidate(t, store, "node-0", options)
			crashing.run(t, serve)
			time.Sleep(ttl / 2)
			crashing.conn.Cut() // no disconnect
			_ = crashing.client.Close()
			again := newCandidate(t, store, "node-0", options)
			began := time.Now()
			again.run(t, serve)
			synctest.Wait()
			if standby, _ := again.last(election.Standby); !errors.Is(standby.Cause, election.ErrCrashed) {
				t.Errorf("it stands by because of %v, want ErrCrashed", standby.Cause)
			}
			time.Sleep(3 * ttl) // no other node wants it
			if active, terms := again.last(election.Active); terms != 1 || active.Since.Sub(began) != ttl+ttl/2 {
				t.Errorf("it led %d times, after %v, want TTL + HoldOff", terms, active.Since.Sub(began))
			}
		})
	}
}

func TestAPreferredNodeGetsTheLeadBackAfterItsHoldDown(t *testing.T) {
	for _, test := range []struct {
		name    string
		silence bool
		store   statestore.Options
		late    time.Duration // than the hold-down
	}{
		{"notifications arrive", false, statestore.Options{}, 20 * time.Millisecond},
		{"every notification is lost", true, statestore.Options{}, 2*ttl + ttl/5},
		{"a strict store", false, statestore.Options{Strict: true, LockPrefixes: []string{name}}, 20 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, err := transporttest.NewStore(test.store)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(store.Close)
				candidates := ranked(t, store, 2, election.Options{FailBackAfter: failBackAfter})
				preferred, other := candidates[0], candidates[1]
				for _, c := range candidates {
					c.conn.Silence(test.silence)
				}
				other.run(t, serve)
				time.Sleep(7 * ttl)
				preferred.run(t, serve)
				came := time.Now()
				time.Sleep(failBackAfter + 4*ttl)
				if request := other.request(t); request != "" {
					t.Errorf("the request %q was not deleted", request)
				}
				time.Sleep(20 * ttl)
				active, terms := preferred.last(election.Active)
				if took := active.Since.Sub(came); terms != 1 || took < failBackAfter || took > failBackAfter+test.late {
					t.Errorf("it led %d times, %v after it came, want %v", terms, took, failBackAfter)
				}
				drained, _ := other.last(election.Draining)
				if !errors.Is(drained.Cause, election.ErrYielded) || !strings.Contains(drained.Cause.Error(), `to "node-0" of rank 0`) {
					t.Errorf("cause %v, want ErrYielded to node-0", drained.Cause)
				}
			})
		})
	}
}

func TestAFailBackRequestIsDeletedWhenItsNodeLeadsEndsOrBecomesUnhealthy(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(preferred, leader *candidate, health *fitness)
	}{
		{"it leads", func(_, leader *candidate, _ *fitness) { leader.Resign() }},
		{"it turns unhealthy", func(_, _ *candidate, health *fitness) { health.set(errJammed) }},
		{"it ends, and the first withdrawal is lost", func(preferred, _ *candidate, _ *fitness) {
			var lost atomic.Bool
			preferred.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
				withdrawal := strings.Contains(string(request.Payload), "VDEL")
				return transporttest.Fault{LoseRequest: withdrawal && !lost.Swap(true)}
			})
			_ = preferred.stop()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var health fitness
			// The leader's rank is as good, so it ignores the request.
			pair(t, election.Options{}, election.Options{FailBackAfter: ttl, Health: health.check, HealthEvery: every}, func(t *testing.T, leader, preferred *candidate) {
				runBoth(t, leader, preferred)
				time.Sleep(ttl - 1)
				if request := leader.request(t); request != "" {
					t.Errorf("request %q before the time", request)
				}
				for range 10 { // for as long as it waits
					time.Sleep(ttl)
					if request := leader.request(t); request != "node-b:rank=0&state=rank&tenure=&to=" {
						t.Errorf("request %q, want one of node-b", request)
					}
				}
				test.end(preferred, leader, &health)
				time.Sleep(2 * every)
				if request := leader.request(t); request != "" {
					t.Errorf("the request %q was not deleted", request)
				}
			})
		})
	}
}

func TestInvariant26AForgedNotificationOfARequestEndsNoTerm(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		leader := newCandidate(t, store, "node-a", election.Options{Rank: 1})
		leader.run(t, serve)
		time.Sleep(5 * ttl)
		_, nonce, _ := strings.Cut(leader.leader(t).Value, ":")
		looks := leader.requests(requestsKey)
		for range 5 {
			for _, value := range []string{"forger:rank=0&state=rank", "forger:rank=0&state=ready&tenure=node-a%3A" + nonce + "&to=forger"} {
				leader.conn.Forge(transporttest.Notification{Key: requestsKey, Payload: resp3.AppendCommand(nil, "NOTIFY", "SET", "VALUE", value)})
				time.Sleep(ttl / 100)
			}
		}
		if _, drained := leader.last(election.Draining); drained > 0 {
			t.Error("a notification alone ended the term")
		}
		if got := looks(); got == 0 || got > 11 {
			t.Errorf("%d looks after 10 notifications", got)
		}
	})
}

func switchover(t *testing.T, client *transport.Client, to string, within time.Duration) (election.Switched, error) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return election.Switchover(ctx, client, name, to)
}

// trio runs three candidates of the ranks, of which node-0 leads, and a client of an operator.
func trio(t *testing.T, strict bool, options election.Options, ranks [3]int, test func(*testing.T, [3]*candidate, *transport.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var storeOptions statestore.Options
		if strict {
			storeOptions = statestore.Options{Strict: true, LockPrefixes: []string{name}}
		}
		store, err := transporttest.NewStore(storeOptions)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		operator, _ := store.Client(t, "operator", transport.ClientOptions{})
		var candidates [3]*candidate
		for i := range candidates {
			options.Rank = ranks[i]
			candidates[i] = newCandidate(t, store, fmt.Sprintf("node-%d", i), options)
			candidates[i].run(t, serve)
			time.Sleep(ttl)
		}
		candidates[0].mustLead(t)
		test(t, candidates, operator)
	})
}

func TestASwitchoverHandsOverToTheNamedCandidateWithoutADelay(t *testing.T) {
	for _, test := range []struct {
		name    string
		strict  bool
		options election.Options
		ranks   [3]int
		to      string
	}{
		{"equal ranks, the second", false, election.Options{}, [3]int{}, "node-1"},
		{"the worst rank goes first", false, election.Options{}, [3]int{0, 1, 2}, "node-2"},
		{"a rank that is not 0 leads", false, election.Options{}, [3]int{2, 2, 1}, "node-1"},
		{"with fail-back", false, election.Options{FailBackAfter: failBackAfter}, [3]int{0, 1, 2}, "node-2"},
		{"a strict store", true, election.Options{}, [3]int{}, "node-2"},
		{"any", false, election.Options{}, [3]int{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			trio(t, test.strict, test.options, test.ranks, func(t *testing.T, candidates [3]*candidate, operator *transport.Client) {
				switched, err := switchover(t, operator, test.to, 10*ttl)
				if err != nil || switched.From.Name != "node-0" || switched.Gap > ttl/20 ||
					test.to != "" && switched.To.Name != test.to || switched.To.Name == "node-0" {
					t.Fatalf("%+v, %v", switched, err)
				}
				if drained, _ := candidates[0].last(election.Draining); !errors.Is(drained.Cause, election.ErrSwitchover) {
					t.Errorf("the term ended with %v", drained.Cause)
				}
				time.Sleep(3 * ttl)
				if holder := candidates[0].leader(t); holder.Value != switched.To.Value {
					t.Errorf("%+v leads later; want the tenure that began then", holder)
				}
				if request := candidates[0].request(t); request != "" && test.options.FailBackAfter == 0 {
					t.Errorf("%q is left", request)
				}
			})
		})
	}
}

func TestASwitchoverThatCannotBeEndsNoTerm(t *testing.T) {
	for _, test := range []struct {
		name, to string
		before   func(candidates [3]*candidate)
		want     error // within 5 TTL
		leaves   bool  // no node leads
	}{
		{"gone", "node-2", func(candidates [3]*candidate) { _ = candidates[2].stop() }, context.DeadlineExceeded, false},
		{"cut off", "node-2", func(candidates [3]*candidate) {
			candidates[2].conn.SetFault(func(transporttest.Request) transporttest.Fault { return transporttest.Fault{LoseRequest: true} })
		}, context.DeadlineExceeded, false},
		{"no other candidate", "", func(candidates [3]*candidate) {
			_, _ = candidates[1].stop(), candidates[2].stop()
		}, context.DeadlineExceeded, false},
		{"to the leader", "node-0", func([3]*candidate) {}, nil, false},
		{"no node leads", "node-1", func(candidates [3]*candidate) {
			_, _, _ = candidates[1].stop(), candidates[2].stop(), candidates[0].stop()
		}, election.ErrNoLeader, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			trio(t, false, election.Options{}, [3]int{}, func(t *testing.T, candidates [3]*candidate, operator *transport.Client) {
				test.before(candidates)
				switched, err := switchover(t, operator, test.to, 5*ttl)
				late := errors.Is(err, context.DeadlineExceeded)
				if !errors.Is(err, test.want) || (switched.To.Name != "node-0") != test.leaves || late && !strings.Contains(err.Error(), "no such candidate is ready") {
					t.Errorf("%+v, %v; want %v", switched, err, test.want)
				}
				if _, drained := candidates[0].last(election.Draining); (drained > 0) != test.leaves || candidates[0].request(t) != "" {
					t.Errorf("the leader drained %d times, and %q is left", drained, candidates[0].request(t))
				}
			})
		})
	}
}

func TestAnIdleElectorSendsNothingForSwitchovers(t *testing.T) {
	trio(t, false, election.Options{}, [3]int{}, func(t *testing.T, candidates [3]*candidate, _ *transport.Client) {
		leader, other := candidates[0].requests(requestsKey), candidates[1].requests(requestsKey)
		time.Sleep(20 * ttl)
		if leader() > 0 || other() > 0 {
			t.Errorf("%d and %d requests in 20 TTL", leader(), other())
		}
	})
}
