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
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// stubborn is a candidate whose SETs of the lease's key can be refused, in any words.
type stubborn struct {
	candidate
	refusal atomic.Pointer[transport.RefusedError]
	asked   atomic.Int64
}

type stubbornConn struct {
	*transporttest.Conn
	*stubborn
}

func (c stubbornConn) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	payload := string(request.Payload)
	if strings.Contains(payload, "\r\nSET\r\n") && strings.Contains(payload, "\r\n"+name+"\r\n") {
		c.asked.Add(1)
		if refusal := c.refusal.Load(); refusal != nil {
			return transport.Reply{}, refusal
		}
	}
	return c.Conn.RoundTrip(ctx, request)
}

// refuse lets the store refuse with an error from now on; nil ends that.
func (s *stubborn) refuse(refusal error) {
	if refusal == nil {
		s.refusal.Store(nil)
		return
	}
	s.refusal.Store(&transport.RefusedError{Text: refusal.Error()})
}

func newStubborn(t *testing.T, store *transporttest.Store, id string, options election.Options) *stubborn {
	t.Helper()
	s := &stubborn{}
	s.conn = store.Connect(id)
	client, err := transport.NewClient(stubbornConn{s.conn, s}, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s.client = client
	s.elect(t, options)
	return s
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
		{transport.ErrSyntax, false},
		{transport.ErrLockRule, false},
	} {
		for _, rank := range []int{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				c := newStubborn(t, store, "node-a", election.Options{Rank: rank})
				c.refuse(test.refusal)
				c.run(t, serve)
				time.Sleep(20 * ttl)
				select {
				case err := <-c.result:
					t.Fatalf("%v: Run returned %v", test.refusal, err)
				default:
				}
				if got := c.asked.Load(); got < 5 || got > 100 {
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
					t.Errorf("%v: told %d times", test.refusal, causes)
				}
				c.refuse(nil)
				time.Sleep(5 * ttl)
				c.mustLead(t)
				if err := c.stop(); !errors.Is(err, context.Canceled) {
					t.Errorf("%v: Run returned %v", test.refusal, err)
				}
			})
		}
	}
}

func TestStandbyIsToldAgainWithoutACauseWhenOnlyAnotherLeaderIsInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		other := newCandidate(t, store, "node-b", election.Options{})
		other.run(t, serve)
		synctest.Wait()
		var heard atomic.Int64
		c := newStubborn(t, store, "node-a", election.Options{Lease: lease.Options{OnWaiting: func(error) {
			heard.Add(1)
			panic("a hook of the user's")
		}}})
		c.refuse(transport.ErrNotAuthorized)
		c.run(t, serve)
		time.Sleep(5 * ttl)
		if standby, count := c.last(election.Standby); count != 2 || !errors.Is(standby.Cause, transport.ErrNotAuthorized) {
			t.Errorf("%d Standbys, the latest because of %v", count, standby.Cause)
		}
		c.refuse(nil)
		time.Sleep(5 * ttl)
		if standby, count := c.last(election.Standby); count != 3 || standby.Cause != nil || heard.Load() != 2 {
			t.Errorf("%d Standbys, the latest because of %v; the hook heard %d", count, standby.Cause, heard.Load())
		}
		_, _ = other.stop(), c.stop()
	})
}

func TestRunReturnsWhenTheClientIsTakenOverWhileItLeadsOrWaits(t *testing.T) {
	for _, leads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			first, second := newCandidate(t, store, "node-a", election.Options{HoldOff: time.Hour}), newCandidate(t, store, "node-b", election.Options{HoldOff: time.Hour})
			runBoth(t, first, second)
			ending, other := second, first
			if leads {
				ending, other = first, second
			}
			store.Connect(ending.client.ClientID())
			time.Sleep(3 * ttl) // less than the hold-off after a short term
			select {
			case err := <-ending.result:
				if !errors.Is(err, transport.ErrSessionTakenOver) {
					t.Errorf("leads %v: Run returned %v, want ErrSessionTakenOver", leads, err)
				}
			default:
				t.Errorf("leads %v: Run goes on", leads)
			}
			_, _ = other.stop(), ending.stop()
		})
	}
}

func TestInvariant28AKeyThatCannotBeClaimedCausesNoHotLoop(t *testing.T) {
	var claims atomic.Int64
	observer := func(transition election.Transition) {
		if transition.Phase == election.Claiming && claims.Add(1) > 100 {
			time.Sleep(ttl / 10) // a loop so hot would keep virtual time from passing
		}
	}
	inBubble(t, election.Options{Claim: []string{key}, Observer: observer}, func(t *testing.T, first, second *candidate) {
		ahead := hlc.Token{Wall: time.Now().Add(50 * time.Second).UnixMilli(), Node: "forger"}
		if _, err := second.client.Set(t.Context(), key, nil, transport.SetOptions{FencingToken: ahead}); err != nil {
			t.Fatal(err)
		}
		first.run(t, serve)
		time.Sleep(10 * ttl)
		if _, terms := first.last(election.Claiming); terms < 2 || terms > 8 {
			t.Errorf("%d terms in 10 TTL", terms)
		}
		if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrFencedOut) {
			t.Errorf("released because of %v, want ErrFencedOut", released.Cause)
		}
		time.Sleep(50 * time.Second) // the token is in the past
		first.mustLead(t)
		_ = first.stop()
	})
}

func TestInvariant28ALeaseThatIsLostAgainAndAgainAtOnceCausesNoHotLoop(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.run(t, func(ctx context.Context, _ *election.Term) error {
			time.Sleep(ttl / 10) // the tenure watches its key by now
			_, _ = second.client.Del(t.Context(), name, transport.DelOptions{})
			await.Receive(ctx.Done())
			return nil
		})
		time.Sleep(20 * ttl)
		if _, terms := first.last(election.Active); terms < 2 || terms > 12 {
			t.Errorf("%d terms in 20 TTL", terms)
		}
		if released, _ := first.last(election.Released); !errors.Is(released.Cause, lease.ErrDeleted) {
			t.Errorf("released because of %v, want ErrDeleted", released.Cause)
		}
		_ = first.stop()
	})
}

func TestATermAfterWhichTheTenureWasOverEndedBecauseOfThat(t *testing.T) {
	failure := errors.New("the press jammed")
	for _, test := range []struct {
		name string
		end  func(ctx context.Context, term *election.Term) error
		also error // part of the cause
	}{
		{"the function returns", func(context.Context, *election.Term) error { return nil }, nil},
		{"the function fails", func(context.Context, *election.Term) error { return failure }, failure},
		{"the function resigns", func(ctx context.Context, term *election.Term) error {
			term.Resign()
			await.Receive(ctx.Done())
			return failure
		}, election.ErrResigned},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stood atomic.Int64 // for how long the machine was suspended, unseen by any timer
				steady := lease.MonotonicClock()
				pairInBubble(t, election.Options{
					OneShot: true,
					Lease:   lease.Options{Clock: func() time.Duration { return steady() + time.Duration(stood.Load()) }},
				}, election.Options{}, func(t *testing.T, first, _ *candidate) {
					first.run(t, func(ctx context.Context, term *election.Term) error {
						time.Sleep(3 * ttl)
						stood.Store(int64(ttl))
						return test.end(ctx, term)
					})
					err := await.Receive(first.result)
					for _, phase := range []election.Phase{election.Draining, election.Released} {
						transition, _ := first.last(phase)
						if !errors.Is(transition.Cause, lease.ErrDeadlinePassed) || test.also != nil && test.also != failure && !errors.Is(transition.Cause, test.also) {
							t.Errorf("%v because of %v, want ErrDeadlinePassed and %v", phase, transition.Cause, test.also)
						}
						if errors.Is(transition.Cause, election.ErrReturned) {
							t.Errorf("%v because of %v", phase, transition.Cause)
						}
					}
					if test.also == failure && !errors.Is(err, failure) || test.also != election.ErrResigned && !errors.Is(err, lease.ErrDeadlinePassed) {
						t.Errorf("Run returned %v", err)
					}
				})
			})
		})
	}
}

func TestALeaseThatIsLostAfterALongTermIsCampaignedForAtOnce(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, second *candidate) {
		first.run(t, serve)
		time.Sleep(3 * ttl)
		lost := time.Now()
		if _, err := second.client.Del(t.Context(), name, transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl)
		active, terms := first.last(election.Active)
		if terms != 2 || active.At.Sub(lost) > 10*time.Millisecond {
			t.Errorf("%d terms, the latest %v after the first was lost", terms, active.At.Sub(lost))
		}
		_ = first.stop()
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
