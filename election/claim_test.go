package election_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A claim of the lease's own name took away its expiry and fenced its renewals for good.
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
