package server_test

import (
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// A client that comes back while its old connection is still there was never away.
func TestATakeOverKeepsTheSessionOfAUserThatHasAsManyAsItMay(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, Limits: server.Limits{SessionsPerUser: 1}})
	away := testsupport.Connect(t, address, "away", testsupport.KeepSession(true))
	_ = away.Conn.Close()
	testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
	before := testsupport.Connect(t, address, "p", testsupport.KeepSession(true))
	before.Subscribe("factory/x")
	chat := testsupport.Connect(t, address, "chat", nil)
	p, err := testsupport.TryConnect(t, address, "p", testsupport.KeepSession(false)) // and before is still open
	if err != nil {
		t.Fatal(err)
	}
	if !p.Connack.SessionPresent {
		t.Error("the session is gone")
	}
	if _, err := chat.Publish(&paho.Publish{Topic: "factory/x", QoS: 1, Payload: []byte("x")}); err != nil {
		t.Errorf("the subscription is gone: %v", err)
	}
}
