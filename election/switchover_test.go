package election_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// operator asks for switchovers.
type operator struct{ client *transport.Client }

func newOperator(t *testing.T, store *transporttest.Store, id string) operator {
	t.Helper()
	client, _ := store.Client(t, id, transport.ClientOptions{})
	return operator{client}
}

func (o operator) switchover(t *testing.T, to string, within time.Duration) (election.Switched, error) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return election.Switchover(ctx, o.client, name, to)
}

// trio runs three candidates of the ranks, of which node-0 leads, and an operator.
func trio(t *testing.T, store statestore.Options, options election.Options, ranks [3]int, test func(*testing.T, *transporttest.Store, [3]*candidate, operator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := transporttest.NewStore(store)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var candidates [3]*candidate
		for i := range candidates {
			options.Rank = ranks[i]
			candidates[i] = newCandidate(t, s, fmt.Sprintf("node-%d", i), options)
			defer candidates[i].client.Close()
			candidates[i].run(t, serve)
			time.Sleep(ttl)
		}
		o := newOperator(t, s, "operator")
		defer o.client.Close()
		candidates[0].mustLead(t)
		test(t, s, candidates, o)
		for _, c := range candidates {
			_ = c.stop()
		}
	})
}

func TestASwitchoverHandsOverToTheNamedCandidateWithoutADelay(t *testing.T) {
	for _, test := range []struct {
		name    string
		store   statestore.Options
		options election.Options
		ranks   [3]int
		to      string
	}{
		{"equal ranks, the second", statestore.Options{}, election.Options{}, [3]int{}, "node-1"},
		{"equal ranks, the third", statestore.Options{}, election.Options{}, [3]int{}, "node-2"},
		{"the worst rank goes first", statestore.Options{}, election.Options{}, [3]int{0, 1, 2}, "node-2"},
		{"a rank that is not 0 leads", statestore.Options{}, election.Options{}, [3]int{2, 2, 1}, "node-1"},
		{"with fail-back", statestore.Options{}, election.Options{FailBackAfter: failBackAfter}, [3]int{0, 1, 2}, "node-2"},
		{"a strict store", statestore.Options{Strict: true, LockPrefixes: []string{name}}, election.Options{}, [3]int{}, "node-2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			trio(t, test.store, test.options, test.ranks, func(t *testing.T, _ *transporttest.Store, candidates [3]*candidate, o operator) {
				switched, err := o.switchover(t, test.to, 10*ttl)
				if err != nil || switched.From.Name != "node-0" || switched.To.Name != test.to || switched.Gap > ttl/20 {
					t.Fatalf("%+v, %v", switched, err)
				}
				if drained, _ := candidates[0].last(election.Draining); !errors.Is(drained.Cause, election.ErrSwitchover) {
					t.Errorf("the term ended with %v", drained.Cause)
				}
				time.Sleep(3 * ttl)
				if holder, err := candidates[0].leader(t); err != nil || holder.Value != switched.To.Value {
					t.Errorf("%+v leads later, %v; want the tenure that began then", holder, err)
				}
				if request := candidates[0].failBackRequest(t); request != "" && test.options.FailBackAfter == 0 {
					t.Errorf("%q is left", request)
				}
			})
		})
	}
}

func TestASwitchoverToAnyCandidateHandsOverToOneThatIsReady(t *testing.T) {
	trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, _ *transporttest.Store, _ [3]*candidate, o operator) {
		switched, err := o.switchover(t, "", 10*ttl)
		if err != nil || !switched.To.Held || switched.To.Name == "node-0" || switched.Gap > ttl/20 {
			t.Errorf("%+v, %v", switched, err)
		}
	})
}

func TestASwitchoverToANameThatIsNotThereEndsNoTerm(t *testing.T) {
	for _, test := range []struct {
		name   string
		to     string
		before func(t *testing.T, store *transporttest.Store, candidates [3]*candidate)
	}{
		{"never there", "node-9", func(*testing.T, *transporttest.Store, [3]*candidate) {}},
		{"gone", "node-2", func(_ *testing.T, _ *transporttest.Store, candidates [3]*candidate) { _ = candidates[2].stop() }},
		{"cut off", "node-2", func(_ *testing.T, _ *transporttest.Store, candidates [3]*candidate) {
			candidates[2].conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{LoseRequest: true} })
		}},
		{"refused by the store", "node-2", func(t *testing.T, store *transporttest.Store, candidates [3]*candidate) {
			store.Authorize(func(client string, verb statestore.Verb, key string) bool {
				return client != "node-2" || verb != statestore.VerbSet || key != name
			})
			_ = candidates[2].stop()
			candidates[2].run(t, serve)
			synctest.Wait()
		}},
		{"no other candidate", "", func(_ *testing.T, _ *transporttest.Store, candidates [3]*candidate) {
			_, _ = candidates[1].stop(), candidates[2].stop()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, store *transporttest.Store, candidates [3]*candidate, o operator) {
				test.before(t, store, candidates)
				switched, err := o.switchover(t, test.to, 5*ttl)
				if err == nil || !strings.Contains(err.Error(), "no such candidate is ready") || !errors.Is(err, context.DeadlineExceeded) || switched.To.Name != "node-0" {
					t.Errorf("%+v, %v; want that no candidate is ready", switched, err)
				}
				if _, drained := candidates[0].last(election.Draining); drained > 0 {
					t.Error("the leader drained")
				}
				if request := candidates[0].failBackRequest(t); request != "" {
					t.Errorf("%q is left", request)
				}
			})
		})
	}
}

func TestALeaderThatRefusesSwitchoversLeadsOnAndSaysSo(t *testing.T) {
	trio(t, statestore.Options{}, election.Options{RefuseSwitchover: true}, [3]int{}, func(t *testing.T, _ *transporttest.Store, candidates [3]*candidate, o operator) {
		began := time.Now()
		if _, err := o.switchover(t, "node-1", 10*ttl); !errors.Is(err, election.ErrSwitchoverRefused) || time.Since(began) > ttl {
			t.Errorf("%v after %v, want ErrSwitchoverRefused at once", err, time.Since(began))
		}
		time.Sleep(5 * ttl)
		if _, drained := candidates[0].last(election.Draining); drained > 0 {
			t.Error("the leader drained")
		}
	})
}

func TestASwitchoverWhileNoNodeLeadsAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		o := newOperator(t, store, "operator")
		if _, err := o.switchover(t, "node-1", ttl); !errors.Is(err, election.ErrNoLeader) {
			t.Errorf("%v, want ErrNoLeader", err)
		}
		if entry, err := o.client.Get(t.Context(), failBackKey); err != nil || entry.Exists {
			t.Errorf("%q is left, %v", entry.Value, err)
		}
	})
}

func TestASwitchoverToTheLeaderChangesNothing(t *testing.T) {
	trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, _ *transporttest.Store, candidates [3]*candidate, o operator) {
		switched, err := o.switchover(t, "node-0", ttl)
		if _, drained := candidates[0].last(election.Draining); err != nil || switched.To.Name != "node-0" || drained > 0 {
			t.Errorf("%+v, %v, drained %d times", switched, err, drained)
		}
	})
}

func TestASecondSwitchoverDuringTheFirstEndsNoOtherTerm(t *testing.T) {
	for _, later := range []time.Duration{0, ttl / 4} {
		trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, store *transporttest.Store, candidates [3]*candidate, o operator) {
			_ = candidates[0].stop()
			time.Sleep(ttl)
			holder, err := candidates[0].leader(t)
			if err != nil || !holder.Held {
				t.Fatalf("%+v, %v", holder, err)
			}
			to := map[string]string{"node-1": "node-2", "node-2": "node-1"}[holder.Name]
			other := newOperator(t, store, "other")
			first := make(chan error, 1)
			go func() {
				_, err := o.switchover(t, to, 10*ttl)
				first <- err
			}()
			time.Sleep(later)
			switched, err := other.switchover(t, to, 10*ttl)
			if err != nil || switched.To.Name != to {
				t.Errorf("the second: %+v, %v", switched, err)
			}
			if err := await.Receive(first); err != nil {
				t.Errorf("the first: %v", err)
			}
			time.Sleep(5 * ttl)
			terms := 0
			for _, c := range candidates {
				_, active := c.last(election.Active)
				terms += active
			}
			if terms != 3 {
				t.Errorf("%d terms, want 3", terms)
			}
			_ = other.client.Close()
			candidates[0].run(t, serve)
		})
	}
}

func TestASwitchoverWaitsForALeaderThatDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		leader, next := newCandidate(t, store, "node-0", election.Options{}), newCandidate(t, store, "node-1", election.Options{})
		leader.run(t, func(ctx context.Context, _ *election.Term) error {
			await.Receive(ctx.Done())
			time.Sleep(ttl / 4)
			return nil
		})
		time.Sleep(ttl)
		next.run(t, serve)
		time.Sleep(ttl)
		asked := time.Now()
		switched, err := newOperator(t, store, "operator").switchover(t, "node-1", 10*ttl)
		if took := time.Since(asked); err != nil || switched.To.Name != "node-1" || took < ttl/4 || took > ttl/2 || switched.Gap > ttl/20 {
			t.Errorf("%+v, %v after %v", switched, err, took)
		}
		_, _ = leader.stop(), next.stop()
	})
}

func TestARequestForAFormerTenureHasNoEffect(t *testing.T) {
	trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, _ *transporttest.Store, candidates [3]*candidate, _ operator) {
		candidates[1].placeRequest(t, "node-1:state=ready&tenure=node-0%3A00112233445566778899aabbccddeeff&to=node-1")
		time.Sleep(5 * ttl)
		if _, drained := candidates[0].last(election.Draining); drained > 0 {
			t.Error("the leader drained")
		}
	})
}

func TestACandidateThatSaidItIsReadyAndDiesDelaysTheOthersByAQuarterOfATTL(t *testing.T) {
	trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, _ *transporttest.Store, candidates [3]*candidate, o operator) {
		holder, err := candidates[0].leader(t)
		if err != nil {
			t.Fatal(err)
		}
		_ = candidates[2].stop() // its word is written by this test
		asked := time.Now()
		candidates[1].placeRequest(t, "node-2:"+"state=ready&tenure=node-0%3A"+holder.Value[len("node-0:"):]+"&to=node-2")
		time.Sleep(ttl/4 - ttl/20)
		candidates[0].mustBeFree(t)
		time.Sleep(ttl / 10)
		candidates[1].mustLead(t)
		if active, _ := candidates[1].last(election.Active); active.Since.Sub(asked) < ttl/4 {
			t.Errorf("it led after %v", active.Since.Sub(asked))
		}
	})
}

func TestInvariant26AForgedNotificationOfASwitchoverEndsNoTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		conn := &forger{Conn: store.Connect("node-a")}
		client, err := transport.NewClient(conn, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		leader := &candidate{client: client, conn: conn.Conn}
		leader.elect(t, election.Options{})
		leader.run(t, serve)
		time.Sleep(ttl)
		holder, err := leader.leader(t)
		if err != nil {
			t.Fatal(err)
		}
		conn.events.Notify(transport.Notification{Key: failBackKey, Payload: resp3.AppendCommand(nil, "NOTIFY", "SET", "VALUE",
			"forger:state=ready&tenure=node-a%3A"+holder.Value[len("node-a:"):]+"&to=forger")})
		time.Sleep(ttl)
		if _, drained := leader.last(election.Draining); drained > 0 {
			t.Error("a notification alone ended the term")
		}
		_ = leader.stop()
	})
}

func TestAnIdleElectorSendsNothingForSwitchovers(t *testing.T) {
	trio(t, statestore.Options{}, election.Options{}, [3]int{}, func(t *testing.T, _ *transporttest.Store, candidates [3]*candidate, _ operator) {
		leader, other := candidates[0].requests(failBackKey), candidates[1].requests(failBackKey)
		time.Sleep(20 * ttl)
		if leader() > 0 || other() > 0 {
			t.Errorf("%d and %d requests in 20 TTL", leader(), other())
		}
	})
}

// The request is repeated each second, and a candidate of rank 1 answers after 1.25 s.
func TestARepeatedRequestDoesNotPutOffTheAnswerOfACandidate(t *testing.T) {
	worse := election.Options{TTL: 10 * time.Second, Rank: 1}
	pair(t, election.Options{TTL: 10 * time.Second}, worse, func(t *testing.T, first, second *candidate) {
		runBoth(t, first, second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if switched, err := election.Switchover(ctx, first.client, name, ""); err != nil || switched.To.Name != "node-b" {
			t.Errorf("%+v, %v", switched, err)
		}
		_, _ = first.stop(), second.stop()
	})
}
