package integration_test

import (
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testhook"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore/statestoretest"
	"github.com/tenurelock/tenure/transport"
)

func TestTheProtocolTravelsUnchangedThroughOurClient(t *testing.T) {
	statestoretest.Run(t, func(t *testing.T, options statestoretest.Options, check func(*testing.T, statestoretest.Store)) {
		var s overTransport
		s.Address = testsupport.Start(t, server.Options{Store: options.Store, Dialect: options.Dialect, Authorizer: &s.Store})
		check(t, &s)
	})
}

// overTransport makes the server a statestoretest.Store for clients of package transport.
type overTransport struct {
	testsupport.Store
}

// Connect connects with the connection below transport.Client, which sends what it is
// given.
func (s *overTransport) Connect(t testing.TB, clientID string) statestoretest.Client {
	t.Helper()
	newConn := testhook.NewConn.(func(string, transport.Options) (transport.Conn, error))
	conn, err := newConn("mqtt://"+s.Address, transport.Options{ClientID: clientID})
	if err != nil {
		t.Fatal(err)
	}
	c := &transportClient{t: t, store: s, conn: conn, notified: make(chan statestoretest.Notification, 100)}
	conn.Start(transport.Events{
		Up: func() {}, Down: func() {},
		Notify: func(n transport.Notification) {
			c.notified <- statestoretest.Notification{Key: n.Key, Payload: n.Payload, Version: n.Timestamp}
		},
		Ignored: func(why transport.IgnoreReason) { t.Errorf("%s: ignored a message: %v", clientID, why) },
	})
	t.Cleanup(func() { _ = conn.Close() })
	return c
}

type transportClient struct {
	t        testing.TB
	store    *overTransport
	conn     transport.Conn
	notified chan statestoretest.Notification
}

func (c *transportClient) Do(request statestoretest.Request) (statestoretest.Reply, error) {
	timestamp, token, err := request.Texts()
	if err != nil {
		return statestoretest.Reply{}, err
	}
	c.store.Denied.Store(request.Denied)
	reply, err := c.conn.RoundTrip(c.t.Context(), transport.Request{
		Payload:      request.Payload,
		Timestamp:    timestamp,
		FencingToken: token,
		Binding:      transport.Binding{Store: request.Store},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return statestoretest.Reply{Payload: reply.Payload, Version: reply.Timestamp}, nil
}

// Notifications is like that of testsupport.MQTTClient.
func (c *transportClient) Notifications(wanted int) []statestoretest.Notification {
	c.t.Helper()
	var received []statestoretest.Notification
	for range wanted {
		select {
		case n := <-c.notified:
			received = append(received, n)
		case <-c.t.Context().Done():
			c.t.Fatal("a notification is missing")
		}
	}
	if _, err := c.Do(statestoretest.Request{Payload: testsupport.Command("GET", "is anything before me?")}); err != nil {
		c.t.Fatal(err)
	}
	for len(c.notified) > 0 {
		received = append(received, await.Receive(c.notified))
	}
	return received
}

func (c *transportClient) Drop() {
	_ = c.conn.Close()
	// The store has noticed when the next connection of the name is established.
	again := testsupport.Connect(c.t, c.store.Address, c.conn.ClientID(), nil)
	_ = again.Paho.Disconnect(&paho.Disconnect{})
}

// The client is plain paho, without code of this repository.
func TestTheServerFollowsTheProtocolOverMQTT(t *testing.T) {
	t.Parallel() // most of it is waiting for keys to expire
	statestoretest.Run(t, func(t *testing.T, options statestoretest.Options, check func(*testing.T, statestoretest.Store)) {
		s := new(testsupport.Store)
		s.Address = testsupport.Start(t, server.Options{Store: options.Store, Dialect: options.Dialect, Authorizer: s})
		check(t, s)
	})
}
