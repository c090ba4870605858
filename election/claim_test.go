package election_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAnOldLeadersWriteIsRefusedOnceTheNewOneHasClaimed(t *testing.T) {
	inBubble(t, election.Options{Claim: []string{key}}, func(t *testing.T, first, second *candidate) {
		var token hlc.Token
		first.run(t, func(ctx context.Context, term *election.Term) error {
			token, _ = term.Token()
			await.Receive(ctx.Done())
			return nil
		})
		synctest.Wait()
		second.run(t, serve)
		synctest.Wait()
		first.Resign()
		time.Sleep(ttl / 4)
		second.mustLead(t)
		// It has not written yet, only claimed.
		_, err := first.client.Set(t.Context(), key, []byte("old"), transport.SetOptions{FencingToken: token})
		if !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("the old leader's write: %v, want ErrFencingTokenLower", err)
		}
		_, _ = first.stop(), second.stop()
	})
}

func TestAClaimThatFailsEndsTheTerm(t *testing.T) {
	inBubble(t, election.Options{Claim: []string{""}}, func(t *testing.T, first, second *candidate) {
		first.run(t, func(context.Context, *election.Term) error {
			t.Error("the function runs although the claim failed")
			return nil
		})
		synctest.Wait()
		if released, _ := first.last(election.Released); !errors.Is(released.Cause, transport.ErrKeyLengthZero) {
			t.Errorf("released because of %v, want ErrKeyLengthZero", released.Cause)
		}
		second.mustBeFree(t)
		_ = first.stop()
	})
}

func TestInvariant28AKeyThatCannotBeClaimedCausesNoHotLoop(t *testing.T) {
	var claims atomic.Int64
	observer := func(transition election.Status) {
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

// A claim of the lease's own name took away its expiry and fenced its renewals permanently.
func TestInvariant54TheKeyOfTheElectionCannotBeClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		for _, claimed := range []string{name, name + "/bid"} {
			_, err := election.New(client, name, election.Options{Claim: []string{key, claimed}})
			if !errors.Is(err, fencing.ErrLeaseKey) {
				t.Errorf("Claim of %q: %v, want ErrLeaseKey", claimed, err)
			}
		}
		if _, err := election.New(client, name, election.Options{Claim: []string{name + "/count"}}); err != nil {
			t.Errorf("Claim of another key below the name: %v", err)
		}
	})
}
