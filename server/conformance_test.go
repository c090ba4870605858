package server_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

// No code of ours is on the client's side: the requests are written by plain paho.
func TestTheServerFollowsTheProtocolOverMQTT(t *testing.T) {
	t.Parallel() // most of it is waiting for keys to expire
	statestoretest.Run(t, func(t *testing.T, options statestoretest.Options, check func(*testing.T, statestoretest.Store)) {
		s := new(overMQTT)
		s.address = start(t, server.Options{Store: options.Store, Dialect: options.Dialect, Authorizer: s})
		check(t, s)
	})
}

// overMQTT is a server that is reached as any MQTT client reaches it. Its time is the
// real one.
type overMQTT struct {
	address string
	denied  atomic.Bool
}

// Authorize implements access.Authorizer.
func (s *overMQTT) Authorize(access.Identity, statestore.Verb, string) bool { return !s.denied.Load() }

func (s *overMQTT) WallMillis() int64 { return time.Now().UnixMilli() }

func (s *overMQTT) Pass(d time.Duration) { time.Sleep(d) }

func (s *overMQTT) Connect(t testing.TB, clientID string) statestoretest.Client {
	return &mqttClient{store: s, peer: connect(t, s.address, clientID, nil)}
}

type mqttClient struct {
	store *overMQTT
	peer  *peer
}

func (c *mqttClient) Do(request statestoretest.Request) (statestoretest.Reply, error) {
	message := c.peer.request()
	message.Payload = request.Payload
	message.Properties.User = nil
	for name, value := range map[string]*string{"__ts": request.Timestamp, "__ft": request.FencingToken} {
		if value != nil {
			message.Properties.User.Add(name, *value)
		}
	}
	if request.Store != "" {
		message.Properties.User.Add("tenure-store", request.Store)
	}
	if request.Correlation != "" {
		message.Properties.CorrelationData = []byte(request.Correlation)
	}
	c.store.denied.Store(request.Denied)
	if _, err := c.peer.publish(message); err != nil {
		return statestoretest.Reply{}, fmt.Errorf("%s: %w", c.peer.id, err)
	}
	reply := c.peer.next()
	if string(reply.Properties.CorrelationData) != string(message.Properties.CorrelationData) {
		c.peer.t.Errorf("correlation data %q, want %q", reply.Properties.CorrelationData, message.Properties.CorrelationData)
	}
	return statestoretest.Reply{Payload: reply.Payload, Version: reply.Properties.User.Get("__ts")}, nil
}

// Notifications waits for those that must come, and then takes what else is there: a
// notification that nobody should have got would have been written before the reply
// to one more request of the same connection, or is found the next time.
func (c *mqttClient) Notifications(wanted int) []statestoretest.Notification {
	c.peer.t.Helper()
	var received []*paho.Publish
	for range wanted {
		received = append(received, c.peer.nextNotification())
	}
	c.store.denied.Store(false)
	c.peer.do("GET", "is anything before me?")
	for len(c.peer.notified) > 0 {
		received = append(received, await.Receive(c.peer.notified))
	}
	var notifications []statestoretest.Notification
	for _, message := range received {
		notifications = append(notifications, statestoretest.Notification{
			Key:     keyOf(c.peer.t, c.peer.id, message.Topic),
			Payload: message.Payload,
			Version: message.Properties.User.Get("__ts"),
		})
	}
	return notifications
}

// keyOf reads the key from a notification topic, which must be that of the client.
func keyOf(t testing.TB, id, topic string) string {
	t.Helper()
	var client, key []byte
	if _, err := fmt.Sscanf(topic, reservedPrefix+"/%X/command/notify/%X", &client, &key); err != nil || string(client) != id ||
		topic != fmt.Sprintf("%s/%X/command/notify/%X", reservedPrefix, id, key) {
		t.Errorf("client %q is notified on %q: %v", id, topic, err)
	}
	return string(key)
}

func (c *mqttClient) Drop() {
	_ = c.peer.conn.Close()
	c.peer.mustBeGone()
	// The store has noticed when the next connection of the name is established;
	// until then the old one may be notified.
	again := connect(c.peer.t, c.store.address, c.peer.id, func(connect *paho.Connect) { connect.CleanStart = false })
	_ = again.paho.Disconnect(&paho.Disconnect{})
}
