package testsupport

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

// Store makes a store that answers over MQTT a statestoretest.Store. Its time is the real time.
type Store struct {
	Address  string
	Denied   atomic.Bool
	Attached *Attachment // to a broker, which hides who asks, and whether a request is delivered again; nil: our server

	away    string // the client whose watch has not ended yet
	changes bool   // others have changed keys since
}

// Authorize implements access.Authorizer.
func (s *Store) Authorize(access.Identity, statestore.Verb, string) bool { return !s.Denied.Load() }

// WallMillis implements statestoretest.Store.
func (s *Store) WallMillis() int64 { return time.Now().UnixMilli() }

// Pass implements statestoretest.Store.
func (s *Store) Pass(d time.Duration) { time.Sleep(d) }

// Connect implements statestoretest.Store.
func (s *Store) Connect(t testing.TB, clientID string) statestoretest.Client {
	if s.Attached != nil && clientID == s.away && s.changes {
		// Its watch ends with the first notification that no client reads. Before that has
		// come back it could be read again.
		Eventually(t, "the watch of "+clientID+" ends", func() bool { return s.Attached.Stats().DroppedWatches == 1 })
		s.away = ""
	}
	c := &mqttClient{store: s, PahoClient: Connect(t, s.Address, clientID, nil)}
	if s.Attached != nil {
		c.Subscribe(fmt.Sprintf("%s/%X/command/notify/+", ReservedPrefix, clientID))
	}
	return c
}

// mqttClient implements statestoretest.Client with a PahoClient.
type mqttClient struct {
	store *Store
	*PahoClient
}

// Do implements statestoretest.Client.
func (c *mqttClient) Do(request statestoretest.Request) (statestoretest.Reply, error) {
	switch attached := c.store.Attached != nil; {
	case attached && request.Denied:
		// The store does not know which client asks: to authorize it is the broker's task.
		return statestoretest.Reply{}, statestoretest.ErrUnsupported
	case !attached && request.Again:
		return statestoretest.Reply{}, statestoretest.ErrUnsupported // the client has new packet ids only
	}
	c.store.changes = true
	message := c.Request()
	message.Payload = request.Payload
	message.Properties.User = nil
	for name, value := range map[string]*string{"__ts": request.Timestamp, "__ft": request.FencingToken} {
		if value != nil {
			message.Properties.User.Add(name, *value)
		}
	}
	if !request.Published {
		message.Properties.User.Add("__protVer", "1.0")
	}
	if request.Store != "" {
		message.Properties.User.Add("tenure-store", request.Store)
	}
	if request.Correlation != "" {
		message.Properties.CorrelationData = []byte(request.Correlation)
	}
	c.store.Denied.Store(request.Denied)
	if _, err := c.Publish(message); err != nil {
		return statestoretest.Reply{}, fmt.Errorf("%s: %w", c.ID, err)
	}
	reply := c.Next()
	if string(reply.Properties.CorrelationData) != string(message.Properties.CorrelationData) {
		c.T.Errorf("correlation data %q, want %q", reply.Properties.CorrelationData, message.Properties.CorrelationData)
	}
	return statestoretest.Reply{Payload: reply.Payload, Version: reply.Properties.User.Get("__ts")}, nil
}

// Notifications waits for the wanted notifications and returns those that have come. An unwanted one
// comes before the reply to a request that it sends after them, or the next call finds it.
func (c *mqttClient) Notifications(wanted int) []statestoretest.Notification {
	c.T.Helper()
	var received []*paho.Publish
	for range wanted {
		received = append(received, c.NextNotification())
	}
	c.store.Denied.Store(false)
	c.PahoClient.Do("GET", "is anything before me?")
	for len(c.Notified) > 0 {
		received = append(received, await.Receive(c.Notified))
	}
	var notifications []statestoretest.Notification
	for _, message := range received {
		notifications = append(notifications, statestoretest.Notification{
			Key:     NotifiedKey(c.T, c.ID, message.Topic),
			Payload: message.Payload,
			Version: message.Properties.User.Get("__ts"),
		})
	}
	return notifications
}

// NotifiedKey returns the key of a notification topic, which must be a topic of client id.
func NotifiedKey(t testing.TB, id, topic string) string {
	t.Helper()
	var client, key []byte
	if _, err := fmt.Sscanf(topic, ReservedPrefix+"/%X/command/notify/%X", &client, &key); err != nil ||
		string(client) != id ||
		topic != fmt.Sprintf("%s/%X/command/notify/%X", ReservedPrefix, id, key) {
		t.Errorf("client %q is notified on %q: %v", id, topic, err)
	}
	return string(key)
}

// Drop closes the connection and waits until the store has noticed.
func (c *mqttClient) Drop() {
	_ = c.Conn.Close()
	c.MustBeGone()
	// Until the next connection of the client is established, the old one may be notified.
	again := Connect(c.T, c.store.Address, c.ID, func(connect *paho.Connect) { connect.CleanStart = false })
	_ = again.Paho.Disconnect(&paho.Disconnect{})
	c.store.away, c.store.changes = c.ID, false
}
