package integration_test

import (
	"testing"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

// The client is plain paho, without code of this repository. Package transport runs the same
// table through its connection.
func TestTheServerFollowsTheProtocolOverMQTT(t *testing.T) {
	t.Parallel() // most of it is waiting for keys to expire
	statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
		s := new(testsupport.Store)
		s.Address = testsupport.Start(t, server.Options{Store: options, Authorizer: s})
		check(t, s)
	})
}
