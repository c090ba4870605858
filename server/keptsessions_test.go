package server_test

import (
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
)

// A client that comes back while its old connection is still there was never away.
func TestATakeOverKeepsTheSessionOfAUserThatHasAsManyAsItMay(t *testing.T) {
	address, s := startServer(t, server.Options{Logger: discard, Limits: server.Limits{SessionsPerUser: 1}})
	away := connect(t, address, "away", keepSession(true))
	_ = away.conn.Close()
	eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
	before := connect(t, address, "p", keepSession(true))
	before.subscribe("factory/x")
	chat := connect(t, address, "chat", nil)
	p, err := tryConnect(t, address, "p", keepSession(false)) // and before is still open
	if err != nil {
		t.Fatal(err)
	}
	if !p.connack.SessionPresent {
		t.Error("the session is gone")
	}
	if _, err := chat.publish(&paho.Publish{Topic: "factory/x", QoS: 1, Payload: []byte("x")}); err != nil {
		t.Errorf("the subscription is gone: %v", err)
	}
}
