package transport

import (
	"net"
	"testing"
	"testing/synctest"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

// Together with the same table over plain MQTT, in server/integration, this says that clients of
// this package get from a server what the protocol promises.
func TestTheProtocolTravelsUnchangedThroughAnMQTTConnection(t *testing.T) {
	statestoretest.Run(t, func(t *testing.T, options statestoretest.Options, check func(*testing.T, statestoretest.Store)) {
		synctest.Test(t, func(t *testing.T) {
			check(t, overMQTT{statestoretest.NewMachine(t, options)})
		})
	})
}

// overMQTT puts an MQTT connection between a store and each of its clients.
type overMQTT struct{ statestoretest.Store }

func (s overMQTT) Connect(t testing.TB, clientID string) statestoretest.Client {
	c := &overMQTTClient{t: t, store: s.Store.Connect(t, clientID)}
	c.broker.answer = c.answer
	conn, err := newConn("mqtt://broker", &Options{ClientID: clientID, Dialer: c.broker.dial})
	if err != nil {
		t.Fatal(err)
	}
	c.conn = conn
	conn.Start(Events{
		Up: func() {}, Down: func() {}, Ended: func(error) {},
		Notify: func(n Notification) {
			c.received = append(c.received, statestoretest.Notification{Key: n.Key, Payload: n.Payload, Version: n.Timestamp})
		},
		Ignored: func(why IgnoreReason) { t.Errorf("%s: ignored a message: %v", clientID, why) },
	})
	t.Cleanup(func() {
		_ = conn.Close()
		c.broker.cut()
		await.Done(c.broker.tasks.Wait)
	})
	return c
}

type overMQTTClient struct {
	t        testing.TB
	store    statestoretest.Client
	broker   pipeBroker
	conn     *mqttConn
	denied   bool // the request under way
	received []statestoretest.Notification
}

func (c *overMQTTClient) Do(request statestoretest.Request) (statestoretest.Reply, error) {
	timestamp, token, err := request.Texts()
	if err != nil {
		return statestoretest.Reply{}, err
	}
	c.denied = request.Denied
	reply, err := c.conn.RoundTrip(c.t.Context(), Request{
		Payload:      request.Payload,
		Timestamp:    timestamp,
		FencingToken: token,
		Binding:      Binding{Store: request.Store},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return statestoretest.Reply{Payload: reply.Payload, Version: reply.Timestamp}, nil
}

// answer passes a request on to the store, as it arrived at the broker.
func (c *overMQTTClient) answer(conn net.Conn, packet *packets.ControlPacket) bool {
	p, ok := packet.Content.(*packets.Publish)
	if !ok {
		return false
	}
	if p.Topic != protocol.InvokeTopic || p.Properties.ResponseTopic != protocol.ResponseTopic(c.conn.ClientID()) {
		c.t.Errorf("a request on %q with the response topic %q", p.Topic, p.Properties.ResponseTopic)
	}
	request := statestoretest.Request{Payload: p.Payload, Denied: c.denied}
	for _, user := range p.Properties.User {
		switch user.Key {
		case protocol.PropertyTimestamp:
			request.Timestamp = &user.Value
		case protocol.PropertyFencingToken:
			request.FencingToken = &user.Value
		case protocol.PropertyStore:
			request.Store = user.Value
		}
	}
	reply, err := c.store.Do(request)
	if err != nil {
		c.t.Error(err)
	}
	c.publish(conn, p.Properties.ResponseTopic, p.Properties.CorrelationData, reply.Payload, reply.Version)
	return false // the broker acknowledges it
}

func (c *overMQTTClient) publish(conn net.Conn, topic string, correlation, payload []byte, version string) {
	send(conn, packets.PUBLISH, func(p *packets.Publish) {
		p.Topic, p.Payload, p.Properties.CorrelationData = topic, payload, correlation
		if version != "" {
			p.Properties.User = append(p.Properties.User, packets.User{Key: protocol.PropertyTimestamp, Value: version})
		}
	})
}

func (c *overMQTTClient) Notifications(wanted int) []statestoretest.Notification {
	for _, n := range c.store.Notifications(wanted) {
		c.publish(c.broker.present(), protocol.NotifyTopic(c.conn.ClientID(), n.Key), nil, n.Payload, n.Version)
	}
	synctest.Wait() // until all have arrived
	received := c.received
	c.received = nil
	return received
}

func (c *overMQTTClient) Drop() {
	_ = c.conn.Close()
	c.store.Drop()
}
