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
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	bidKey        = name + "/bid"
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

// bid returns what stands under the key for bids.
func (c *candidate) bid(t *testing.T) string {
	t.Helper()
	entry, err := c.client.Get(t.Context(), bidKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(entry.Value)
}

func (c *candidate) place(t *testing.T, bid string) {
	t.Helper()
	if _, err := c.client.Set(t.Context(), bidKey, []byte(bid), transport.SetOptions{TTL: ttl}); err != nil {
		t.Fatal(err)
	}
}

func TestAVacancyGoesToTheBestRank(t *testing.T) {
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
			if gap, limit := active.At.Sub(died), ttl+ttl/10+2*rankDelay; gap > limit {
				t.Errorf("%v without a leader, want at most %v", gap, limit)
			}
			_, _ = best.stop(), worst.stop()
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
				defer store.Close()
				candidates := ranked(t, store, 2, election.Options{FailBackAfter: failBackAfter})
				preferred, other := candidates[0], candidates[1]
				for _, c := range candidates {
					defer c.client.Close()
					c.conn.Silence(test.silence)
				}
				other.run(t, serve)
				time.Sleep(7 * ttl)
				preferred.run(t, serve)
				came := time.Now()
				time.Sleep(failBackAfter + 4*ttl)
				preferred.mustLead(t)
				active, _ := preferred.last(election.Active)
				if took := active.At.Sub(came); took < failBackAfter || took > failBackAfter+test.late {
					t.Errorf("it led %v after it came, want %v", took, failBackAfter)
				}
				var yield *election.YieldError
				drained, _ := other.last(election.Draining)
				if !errors.Is(drained.Cause, election.ErrYielded) || !errors.As(drained.Cause, &yield) || yield.To != "node-0" || yield.Rank != 0 {
					t.Errorf("cause %v, want ErrYielded to node-0", drained.Cause)
				}
				if bid := other.bid(t); bid != "" {
					t.Errorf("the bid %q was not withdrawn", bid)
				}
				time.Sleep(20 * ttl)
				if _, terms := preferred.last(election.Active); terms != 1 {
					t.Errorf("it led %d times", terms)
				}
				_, _ = preferred.stop(), other.stop()
			})
		})
	}
}

func TestALeaderDoesNotYieldBeforeItLedForTheHoldDown(t *testing.T) {
	for _, test := range []struct{ failBackAfter, want time.Duration }{
		{failBackAfter, failBackAfter},
		{0, ttl},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			leader := newCandidate(t, store, "node-1", election.Options{Rank: 1, FailBackAfter: test.failBackAfter})
			hasty := newCandidate(t, store, "node-0", election.Options{FailBackAfter: 1})
			leader.run(t, serve)
			time.Sleep(ttl)
			began, _ := leader.last(election.Active)
			hasty.run(t, serve)
			time.Sleep(10 * ttl)
			hasty.mustLead(t)
			if drained, _ := leader.last(election.Draining); drained.At.Sub(began.At) != test.want {
				t.Errorf("it yielded after %v, want %v", drained.At.Sub(began.At), test.want)
			}
			_, _ = leader.stop(), hasty.stop()
		})
	}
}

func TestOnlyABetterRanksBidMakesALeaderYield(t *testing.T) {
	for _, test := range []struct {
		rank   int
		bid    string
		yields bool
	}{
		{1, "other:0", true},
		{2, "gateway:left:1", true}, // a colon is allowed
		{1, "other:1", false},
		{1, "other:2", false},
		{0, "other:0", false},
		{0, "other:-1", false},
		{1, "other:-1", false},
		{1, "other", false},
		{1, "0", false},
		{1, "other:", false},
		{1, "other:0x0", false},
		{1, "other:99999999999999999999", false},
		{1, "", false},
	} {
		t.Run(fmt.Sprintf("rank %d, bid %q", test.rank, test.bid), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				leader := newCandidate(t, store, "node-a", election.Options{Rank: test.rank})
				other := newCandidate(t, store, "other", election.Options{})
				leader.run(t, serve)
				time.Sleep(5 * ttl)
				other.place(t, test.bid)
				time.Sleep(ttl / 10)
				if _, drained := leader.last(election.Draining); drained > 0 != test.yields {
					t.Errorf("it yielded %v, want %v", drained > 0, test.yields)
				}
				_ = leader.stop()
			})
		})
	}
}

// forger is a connection that also delivers notifications which no store sent.
type forger struct {
	*transporttest.Conn
	events transport.Events
}

func (f *forger) Start(events transport.Events) {
	f.events = events
	f.Conn.Start(events)
}

func TestInvariant26AForgedBidCostsALookAndNoTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		conn := &forger{Conn: store.Connect("node-a")}
		client, err := transport.NewClient(conn, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		elector, err := election.New(client, name, election.Options{TTL: ttl, Rank: 1, Lease: lease.Options{Clock: lease.MonotonicClock()}})
		if err != nil {
			t.Fatal(err)
		}
		leader := &candidate{Elector: elector, client: client, conn: conn.Conn}
		var ended atomic.Bool
		leader.run(t, func(ctx context.Context, _ *election.Term) error {
			await.Receive(ctx.Done())
			ended.Store(true)
			return nil
		})
		time.Sleep(5 * ttl)
		looks := leader.requests(bidKey)
		for range 10 {
			conn.events.Notify(transport.Notification{
				Key:       bidKey,
				Payload:   resp3.AppendCommand(nil, "NOTIFY", "SET", "VALUE", "forger:0"),
				Timestamp: hlc.Timestamp{Wall: time.Now().UnixMilli(), Node: "forger"}.String(),
			})
			time.Sleep(ttl / 100)
		}
		if ended.Load() {
			t.Error("a notification alone ended the term")
		}
		if got := looks(); got == 0 || got > 11 {
			t.Errorf("%d looks after 10 notifications", got)
		}
		_ = leader.stop()
	})
}

func TestABidIsWithdrawnWhenItsNodeLeadsEndsOrTurnsUnhealthy(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(bidder, leader *candidate, health *fitness)
	}{
		{"it leads", func(_, leader *candidate, _ *fitness) { leader.Resign() }},
		{"it ends", func(bidder, _ *candidate, _ *fitness) { _ = bidder.stop() }},
		{"it turns unhealthy", func(_, _ *candidate, health *fitness) { health.set(errJammed) }},
		{"it ends and the first withdrawal is lost", func(bidder, _ *candidate, _ *fitness) {
			var lost atomic.Bool
			bidder.conn.SetFault(func(request transport.Request) transporttest.Fault {
				withdrawal := strings.Contains(string(request.Payload), "VDEL")
				return transporttest.Fault{LoseRequest: withdrawal && !lost.Swap(true)}
			})
			_ = bidder.stop()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var health fitness
			// The leader's rank is as good, so it does not mind the bid.
			pair(t, election.Options{}, election.Options{FailBackAfter: ttl, Health: health.check, HealthEvery: every}, func(t *testing.T, leader, bidder *candidate) {
				runBoth(t, leader, bidder)
				time.Sleep(ttl - 1)
				if bid := leader.bid(t); bid != "" {
					t.Errorf("bid %q before the time", bid)
				}
				for range 10 { // for as long as it waits
					time.Sleep(ttl)
					if bid := leader.bid(t); bid != "node-b:0" {
						t.Errorf("bid %q, want node-b:0", bid)
					}
				}
				test.end(bidder, leader, &health)
				time.Sleep(2 * every)
				if bid := leader.bid(t); bid != "" {
					t.Errorf("the bid %q was not withdrawn", bid)
				}
				_, _ = leader.stop(), bidder.stop()
			})
		})
	}
}

func TestAnUnhealthyNodeStartsItsHoldDownAnew(t *testing.T) {
	var health fitness
	pair(t, election.Options{}, election.Options{FailBackAfter: failBackAfter, Health: health.check, HealthEvery: every}, func(t *testing.T, leader, bidder *candidate) {
		runBoth(t, leader, bidder)
		for range 5 {
			time.Sleep(failBackAfter - 5*every)
			health.set(errJammed)
			time.Sleep(2 * every)
			health.set(nil)
		}
		time.Sleep(failBackAfter - every)
		if bid := leader.bid(t); bid != "" {
			t.Errorf("bid %q of a node that was not healthy for long enough", bid)
		}
		time.Sleep(3 * every)
		if bid := leader.bid(t); bid == "" {
			t.Error("no bid of a node that was healthy for long enough")
		}
		_, _ = leader.stop(), bidder.stop()
	})
}

func TestTheBestOfSeveralBidsStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		leader := newCandidate(t, store, "leader", election.Options{}) // yields to nobody
		candidates := ranked(t, store, 3, election.Options{FailBackAfter: ttl})
		leader.run(t, serve)
		synctest.Wait()
		for _, step := range []struct {
			comes int
			want  string
		}{{1, "node-1:1"}, {2, "node-1:1"}, {0, "node-0:0"}} {
			candidates[step.comes].run(t, serve)
			time.Sleep(ttl + ttl/3)
			for range 30 {
				time.Sleep(ttl / 10)
				if bid := leader.bid(t); bid != step.want {
					t.Fatalf("after rank %d came: bid %q, want %q", step.comes, bid, step.want)
				}
			}
		}
		leader.place(t, "nonsense")
		time.Sleep(ttl)
		if bid := leader.bid(t); bid != "node-0:0" {
			t.Errorf("bid %q stands, want node-0:0", bid)
		}
		for _, c := range append(candidates, leader) {
			_ = c.stop()
		}
	})
}

func TestWithoutTheRightToBidNothingElseIsHarmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		store.Authorize(func(_ string, _ statestore.Verb, key string) bool { return key != bidKey })
		candidates := ranked(t, store, 2, election.Options{FailBackAfter: ttl})
		preferred, other := candidates[0], candidates[1]
		other.run(t, serve)
		time.Sleep(ttl)
		preferred.run(t, serve)
		requests := preferred.requests(bidKey)
		time.Sleep(20 * ttl)
		other.mustLead(t)
		if got := requests(); got > 3*20 {
			t.Errorf("%d attempts to bid in 20 TTL", got)
		}
		_ = other.stop()
		time.Sleep(ttl)
		preferred.mustLead(t)
		_ = preferred.stop()
	})
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
						if yields++; yields > 1 && transition.At.Sub(last) < failBackAfter {
							t.Errorf("it handed over %v after it had handed over", transition.At.Sub(last))
						}
						last = transition.At
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
							active = transition.At
						case election.Draining:
							led += transition.At.Sub(active)
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

func TestANodeThatCrashedWhileItLedLeavesTheVacancyToOthers(t *testing.T) {
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
				// Nobody else wanted it.
				if active, terms := again.last(election.Active); terms != 1 || active.At.Sub(began) != ttl+ttl/2 {
					t.Errorf("it led %d times, after %v, want TTL + HoldOff", terms, active.At.Sub(began))
				}
				_ = again.stop()
			})
		})
	}
}
