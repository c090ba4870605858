package transport

import (
	"bytes"
	"errors"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
)

// sendPlainly sends what is queued through paho, a request at a time (Options.PlainPaho).
func (c *mqttConn) sendPlainly(client *paho.Client, l *link) {
	var m frame.Message
	for {
		e := c.nextPlain(l, &m)
		if e == nil {
			return
		}
		// Not to wait for the PUBACK here: a reply says more, and a bad PUBACK comes
		// through the session.
		_, err := client.PublishWithOptions(e.ctx, pahoPublish(&m), paho.PublishOptions{Method: paho.PublishMethod_AsyncSend})
		switch {
		case err == nil:
		case errors.Is(err, paho.ErrNetworkErrorAfterStored):
			c.finish(l, e.correlation, result{err: unknown(err)})
		default:
			l.freeSlot()
			c.finish(l, e.correlation, result{err: notSent(err)})
		}
	}
}

// nextPlain is nextLocked for a packet that is written later, when the caller may have
// left and use the memory of the payload again.
func (c *mqttConn) nextPlain(l *link, m *frame.Message) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.nextLocked(l, m)
	if e != nil {
		m.Payload = bytes.Clone(m.Payload)
	}
	return e
}

func pahoPublish(m *frame.Message) *paho.Publish {
	publish := &paho.Publish{
		QoS:     m.QoS,
		Topic:   m.Topic,
		Payload: m.Payload,
		Properties: &paho.PublishProperties{
			ResponseTopic:   m.ResponseTopic,
			CorrelationData: m.CorrelationData,
			ContentType:     m.ContentType,
		},
	}
	if m.MessageExpiry > 0 {
		publish.Properties.MessageExpiry = &m.MessageExpiry
	}
	for _, user := range m.User {
		publish.Properties.User.Add(user.Name, user.Value)
	}
	return publish
}

// receiver returns what paho calls for each PUBLISH that it has read itself.
func (c *mqttConn) receiver(l *link) func(paho.PublishReceived) (bool, error) {
	return func(event paho.PublishReceived) (bool, error) {
		publish := event.Packet
		m := message{topic: []byte(publish.Topic), payload: publish.Payload}
		if properties := publish.Properties; properties != nil {
			m.correlation = properties.CorrelationData
			m.timestamp = []byte(properties.User.Get(protocol.PropertyTimestamp))
			m.status = []byte(properties.User.Get(protocol.PropertyStatus))
			m.statusMessage = []byte(properties.User.Get(protocol.PropertyStatusMessage))
			m.store = []byte(properties.User.Get(protocol.PropertyStore))
		}
		c.deliver(l, &m)
		return true, nil
	}
}

// acknowledgedPlainly is told of the PUBACK of a request that paho sent.
func (c *mqttConn) acknowledgedPlainly(l *link, id correlation, ack *packets.Puback) {
	reason := ""
	if ack.Properties != nil {
		reason = ack.Properties.ReasonString
	}
	c.acknowledged(l, id, ack.ReasonCode, reason)
}
