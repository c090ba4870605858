package statestore_test

import (
	"testing"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

func TestTheStateMachineFollowsTheProtocol(t *testing.T) {
	statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
		check(t, newMachine(t, options))
	})
}
