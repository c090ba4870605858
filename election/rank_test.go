package election_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	failBackKey   = name + "/bid"
	rankDelay     = ttl / 8 // the default
	failBackAfter = 5 * ttl
)

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
			t.Run(fmt.Sprintf("notifications lost %v, leader dies %v", silence, dies), func(t *testing.T) {
				for lifetime := ttl; lifetime < 3*ttl; lifetime += ttl / 7 {
					synctest.Test(t, func(t *testing.T) {
						store := transporttest.Start(t)
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
						for _, c := range append(candidates, leader) {
							_ = c.stop()
						}
					})
				}
			})
		}
	}
}

func TestInvariant25AWorseRankThatIsAloneLeadsAfterItsTurn(t *testing.T) {
	for _, silence := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			candidates := ranked(t, store, 3, election.Options{})
			best, worst := candidates[0], candidates[2]
			runBoth(t, best, worst)
			worst.conn.Silence(silence)
			time.Sleep(5 * ttl)
			died := time.Now()
			best.conn.Cut()
			time.Sleep(2 * ttl)
			worst.mustLead(t)
			active, _ := worst.last(election.Active)
			if gap, limit := active.Since.Sub(died), ttl+ttl/10+2*rankDelay; gap > limit {
				t.Errorf("%v without a leader, want at most %v", gap, limit)
			}
			_, _ = best.stop(), worst.stop()
		})
	}
}

// life is one life of a node that crashes: its connection is cut, and what it was
// doing goes on without a connection until the test ends.
func life(t *testing.T, store *transporttest.Store, id string, options election.Options, lasts time.Duration, lead func(context.Context, *election.Term) error) {
	t.Helper()
	c := newCandidate(t, store, id, options)
	c.run(t, lead)
	time.Sleep(lasts)
	c.conn.Cut() // no farewell
	_ = c.client.Close()
	await.Receive(c.result)
}

func TestANodeThatCrashedAsTheLeaderStaysOutForTTLAndHoldOff(t *testing.T) {
	for _, test := range []struct {
		name   string
		holder string
	}{{"by client id", ""}, {"by the holder's name", "press 7"}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				options := election.Options{FailBackAfter: failBackAfter, Lease: lease.Options{Holder: test.holder}}
				life(t, store, "node-0", options, ttl/2, serve)
				again := newCandidate(t, store, "node-0", options)
				began := time.Now()
				again.run(t, serve)
				synctest.Wait()
				if standby, _ := again.last(election.Standby); !errors.Is(standby.Cause, election.ErrCrashed) {
					t.Errorf("it stands by because of %v, want ErrCrashed", standby.Cause)
				}
				time.Sleep(3 * ttl)
				// No other node wanted it.
				if active, terms := again.last(election.Active); terms != 1 || active.Since.Sub(began) != ttl+ttl/2 {
					t.Errorf("it led %d times, after %v, want TTL + HoldOff", terms, active.Since.Sub(began))
				}
				_ = again.stop()
			})
		})
	}
}

func TestInvariant29APreferredNodeThatKeepsCrashingDoesNotMakeTheLeadFlap(t *testing.T) {
	const watched = 100 * ttl
	for _, lives := range []time.Duration{ttl, 2 * ttl, failBackAfter + ttl/2, failBackAfter + 3*ttl} {
		for _, down := range []time.Duration{ttl / 4, 3 * ttl} {
			t.Run(fmt.Sprintf("it lives for %v and is down for %v", lives, down), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					options := election.Options{FailBackAfter: failBackAfter}
					worse := options
					worse.Rank = 1
					other := newCandidate(t, store, "node-1", worse)
					// The preferred one leads first, as after an orderly start.
					began := time.Now()
					life(t, store, "node-0", options, ttl/2, func(ctx context.Context, _ *election.Term) error {
						other.run(t, serve)
						return serve(ctx, nil)
					})
					for time.Since(began) < watched {
						time.Sleep(down)
						life(t, store, "node-0", options, lives, serve)
					}
					yields := 0
					var last time.Time
					for _, transition := range other.history() {
						if transition.Phase != election.Draining || !errors.Is(transition.Cause, election.ErrYielded) {
							continue
						}
						if yields++; yields > 1 && transition.Since.Sub(last) < failBackAfter {
							t.Errorf("it handed over %v after it had handed over", transition.Since.Sub(last))
						}
						last = transition.Since
					}
					if limit := int(watched / failBackAfter); yields > limit {
						t.Errorf("%d hand-overs in %v", yields, watched)
					}
					if lives < failBackAfter && yields > 0 {
						t.Errorf("%d hand-overs to a node that never lives for long enough", yields)
					}
					var led time.Duration
					var active time.Time
					for _, transition := range other.history() {
						switch transition.Phase {
						case election.Active:
							active = transition.Since
						case election.Draining:
							led += transition.Since.Sub(active)
							active = time.Time{}
						}
					}
					if !active.IsZero() {
						led += time.Since(active)
					}
					if led < watched/2 {
						t.Errorf("the healthy one led for %v of %v", led, watched)
					}
					_ = other.stop()
				})
			})
		}
	}
}

func TestInvariant29APreferredNodeWhoseFunctionFailsDoesNotMakeTheLeadFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		candidates := ranked(t, store, 2, election.Options{FailBackAfter: failBackAfter})
		preferred, other := candidates[0], candidates[1]
		preferred.run(t, func(context.Context, *election.Term) error { return errJammed })
		synctest.Wait()
		other.run(t, serve)
		time.Sleep(100 * ttl)
		_, yields := other.last(election.Draining)
		if yields < 5 || yields > int(100*ttl/failBackAfter) {
			t.Errorf("%d hand-overs in 100 TTL, want one in each hold-down at most", yields)
		}
		_, _ = preferred.stop(), other.stop()
	})
}
