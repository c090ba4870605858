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

// failBackRequest returns the value of the key.
func (c *candidate) failBackRequest(t *testing.T) string {
	t.Helper()
	entry, err := c.client.Get(t.Context(), failBackKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(entry.Value)
}

func (c *candidate) placeRequest(t *testing.T, value string) {
	t.Helper()
	if _, err := c.client.Set(t.Context(), failBackKey, []byte(value), transport.SetOptions{TTL: ttl}); err != nil {
		t.Fatal(err)
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
				if took := active.Since.Sub(came); took < failBackAfter || took > failBackAfter+test.late {
					t.Errorf("it led %v after it came, want %v", took, failBackAfter)
				}
				drained, _ := other.last(election.Draining)
				if !errors.Is(drained.Cause, election.ErrYielded) || !strings.Contains(drained.Cause.Error(), `to "node-0" of rank 0`) {
					t.Errorf("cause %v, want ErrYielded to node-0", drained.Cause)
				}
				if request := other.failBackRequest(t); request != "" {
					t.Errorf("the request %q was not deleted", request)
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
			if drained, _ := leader.last(election.Draining); drained.Since.Sub(began.Since) != test.want {
				t.Errorf("it yielded after %v, want %v", drained.Since.Sub(began.Since), test.want)
			}
			_, _ = leader.stop(), hasty.stop()
		})
	}
}

func TestOnlyARequestOfABetterRankMakesALeaderHandOver(t *testing.T) {
	for _, test := range []struct {
		rank   int
		value  string
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
		t.Run(fmt.Sprintf("rank %d, value %q", test.rank, test.value), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				leader := newCandidate(t, store, "node-a", election.Options{Rank: test.rank})
				other := newCandidate(t, store, "other", election.Options{})
				leader.run(t, serve)
				time.Sleep(5 * ttl)
				other.placeRequest(t, test.value)
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

func TestInvariant26AForgedNotificationOfAFailBackRequestEndsNoTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		conn := &forger{Conn: store.Connect("node-a")}
		client, err := transport.NewClient(conn, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		elector, err := election.New(client, name, election.Options{TTL: ttl, Rank: 1, Lease: lease.Options{}})
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
		looks := leader.requests(failBackKey)
		for range 10 {
			conn.events.Notify(transport.Notification{
				Key:       failBackKey,
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

func TestAFailBackRequestIsDeletedWhenItsNodeLeadsEndsOrBecomesUnhealthy(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(preferred, leader *candidate, health *fitness)
	}{
		{"it leads", func(_, leader *candidate, _ *fitness) { leader.Resign() }},
		{"it ends", func(preferred, _ *candidate, _ *fitness) { _ = preferred.stop() }},
		{"it turns unhealthy", func(_, _ *candidate, health *fitness) { health.set(errJammed) }},
		{"it ends and the first withdrawal is lost", func(preferred, _ *candidate, _ *fitness) {
			var lost atomic.Bool
			preferred.conn.SetFault(func(request transport.Request) transporttest.Fault {
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
				if request := leader.failBackRequest(t); request != "" {
					t.Errorf("request %q before the time", request)
				}
				for range 10 { // for as long as it waits
					time.Sleep(ttl)
					if request := leader.failBackRequest(t); request != "node-b:0" {
						t.Errorf("request %q, want node-b:0", request)
					}
				}
				test.end(preferred, leader, &health)
				time.Sleep(2 * every)
				if request := leader.failBackRequest(t); request != "" {
					t.Errorf("the request %q was not deleted", request)
				}
				_, _ = leader.stop(), preferred.stop()
			})
		})
	}
}

func TestAnUnhealthyNodeRestartsItsHoldDown(t *testing.T) {
	var health fitness
	pair(t, election.Options{}, election.Options{FailBackAfter: failBackAfter, Health: health.check, HealthEvery: every}, func(t *testing.T, leader, preferred *candidate) {
		runBoth(t, leader, preferred)
		for range 5 {
			time.Sleep(failBackAfter - 5*every)
			health.set(errJammed)
			time.Sleep(2 * every)
			health.set(nil)
		}
		time.Sleep(failBackAfter - every)
		if request := leader.failBackRequest(t); request != "" {
			t.Errorf("request %q of a node that was not healthy for long enough", request)
		}
		time.Sleep(3 * every)
		if request := leader.failBackRequest(t); request == "" {
			t.Error("no request of a node that was healthy for long enough")
		}
		_, _ = leader.stop(), preferred.stop()
	})
}

func TestTheBestOfSeveralFailBackRequestsStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		leader := newCandidate(t, store, "leader", election.Options{}) // never hands over, because its rank is 0
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
				if request := leader.failBackRequest(t); request != step.want {
					t.Fatalf("after rank %d came: request %q, want %q", step.comes, request, step.want)
				}
			}
		}
		leader.placeRequest(t, "nonsense")
		time.Sleep(ttl)
		if request := leader.failBackRequest(t); request != "node-0:0" {
			t.Errorf("request %q stands, want node-0:0", request)
		}
		for _, c := range append(candidates, leader) {
			_ = c.stop()
		}
	})
}

func TestWithoutTheRightToRequestFailBackAllElseWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		store.Authorize(func(_ string, _ statestore.Verb, key string) bool { return key != failBackKey })
		candidates := ranked(t, store, 2, election.Options{FailBackAfter: ttl})
		preferred, other := candidates[0], candidates[1]
		other.run(t, serve)
		time.Sleep(ttl)
		preferred.run(t, serve)
		requests := preferred.requests(failBackKey)
		time.Sleep(20 * ttl)
		other.mustLead(t)
		if got := requests(); got > 3*20 {
			t.Errorf("%d requests for fail-back in 20 TTL", got)
		}
		_ = other.stop()
		time.Sleep(ttl)
		preferred.mustLead(t)
		_ = preferred.stop()
	})
}

func TestAPreferredNodeThatIsRefusedTheLeaseDoesNotAskForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		leader := newCandidate(t, store, "node-b", election.Options{Rank: 1, FailBackAfter: ttl})
		leader.run(t, serve)
		time.Sleep(ttl)
		leader.mustLead(t)
		preferred := newStubborn(t, store, "node-a", election.Options{FailBackAfter: ttl})
		preferred.refuse(transport.ErrNotAuthorized)
		preferred.run(t, serve)
		time.Sleep(30 * ttl)
		if _, terms := leader.last(election.Active); terms > 1 {
			t.Errorf("the leader handed over %d times", terms-1)
		}
		_ = preferred.stop()
		preferred.refuse(nil)
		preferred.run(t, serve)
		time.Sleep(10 * ttl)
		preferred.mustLead(t)
		_, _ = leader.stop(), preferred.stop()
	})
}
