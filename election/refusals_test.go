package election_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant50ARefusalNeverEndsAnElectionAndStandbySaysWhy(t *testing.T) {
	for _, test := range []struct {
		refusal error
		passes  bool // Acquire waits for it
	}{
		{transport.ErrNotAuthorized, true},
		{transport.ErrQuotaExceeded, true},
		{transport.ErrServerBusy, true},
		{transport.ErrTimestampTooFarAhead, true},
		{transport.ErrFencingTokenRequired, true},
		{protocol.SyntaxError, false},
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
				if err := c.stop(); !errors.Is(err, context.Canceled) {
					t.Errorf("%v: Run returned %v", test.refusal, err)
				}
			})
		}
	}
}

func TestStandbyFollowsWithoutACauseWhenOnlyAnotherLeaderKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		other := newCandidate(t, store, "node-b", election.Options{})
		other.run(t, serve)
		synctest.Wait()
		c := newStubborn(t, store, "node-a", election.Options{})
		c.refuse(transport.ErrNotAuthorized)
		c.run(t, serve)
		time.Sleep(5 * ttl)
		if standby, count := c.last(election.Standby); count != 2 || !errors.Is(standby.Cause, transport.ErrNotAuthorized) {
			t.Errorf("%d Standbys, the latest because of %v", count, standby.Cause)
		}
		c.refuse(nil)
		time.Sleep(5 * ttl)
		if standby, count := c.last(election.Standby); count != 3 || standby.Cause != nil {
			t.Errorf("%d Standbys, the latest because of %v", count, standby.Cause)
		}
		_, _ = other.stop(), c.stop()
	})
}
