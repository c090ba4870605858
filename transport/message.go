package transport

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
)

// appendLocked adds the packet of a request, with a packet id, to those that are to be written. The
// error says why there can be none.
func (l *link) appendLocked(c *call, id uint16, now time.Time) error {
	if c.boundToLost() {
		return notSent(errBoundConnection)
	}
	expiry := time.Duration(0)
	if !c.deadline.IsZero() {
		if expiry = c.deadline.Sub(now); expiry <= 0 {
			return notSent(context.DeadlineExceeded)
		}
	}
	l.message = mqtt.Message{
		Topic:           protocol.InvokeTopic,
		QoS:             1,
		PacketID:        id,
		MessageExpiry:   messageExpiry(expiry),
		ContentType:     protocol.ContentType,
		ResponseTopic:   l.replies,
		CorrelationData: c.correlation[:],
		User:            requestProperties(l.message.User[:0], l.conn.ClientID(), c.request),
		Payload:         c.request.Payload,
	}
	batch, err := l.message.Append(l.packets)
	if err != nil {
		return notSent(err)
	}
	if size := len(batch) - len(l.packets); size > l.maxPacket { // the broker would end the connection [MQTT-3.2.2-15]
		return &RejectedError{
			Code:   packets.ConnackPacketTooLarge,
			Reason: fmt.Sprintf("the request makes a packet of %d bytes, and the broker takes at most %d", size, l.maxPacket),
		}
	}
	l.packets = batch
	return nil
}

// messageExpiry returns the time that is left of a request in whole seconds, rounded up, so that
// a broker drops a request that its caller has given up. Zero: it has no end.
func messageExpiry(left time.Duration) uint32 {
	return uint32(min(math.Ceil(left.Seconds()), math.MaxUint32))
}

// requestProperties appends the user properties of a request.
func requestProperties(dst []mqtt.UserProperty, clientID string, request Request) []mqtt.UserProperty {
	dst = append(dst,
		mqtt.UserProperty{Name: protocol.PropertySourceID, Value: clientID},
		mqtt.UserProperty{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
		mqtt.UserProperty{Name: protocol.PropertyPartition, Value: clientID})
	persist := ""
	if request.Persist {
		persist = "true"
	}
	for _, optional := range [...]mqtt.UserProperty{
		{Name: protocol.PropertyTimestamp, Value: request.Timestamp},
		{Name: protocol.PropertyFencingToken, Value: request.FencingToken},
		{Name: protocol.PropertyStore, Value: request.Binding.Store},
		{Name: protocol.PropertyPersistence, Value: persist},
		{Name: protocol.PropertyForced, Value: request.Forced},
	} {
		if optional.Value != "" {
			dst = append(dst, optional)
		}
	}
	return dst
}

// message is a PUBLISH that arrived. Its slices may be overwritten after link.received returns.
type message struct {
	topic, correlation, payload []byte
	// User properties, empty where there is none.
	timestamp, status, statusMessage, store, instance []byte
}

// readMessage returns the parts of a PUBLISH that count here.
func readMessage(p *mqtt.Publish) message {
	m := message{topic: p.Topic, correlation: p.CorrelationData, payload: p.Payload}
	for name, value := range p.Users {
		if property := m.property(name); property != nil && *property == nil {
			*property = value // the first of a name counts
		}
	}
	return m
}

// property returns where the user property of a name belongs, or nil if it is of no interest.
func (m *message) property(name []byte) *[]byte {
	switch string(name) {
	case protocol.PropertyTimestamp:
		return &m.timestamp
	case protocol.PropertyStatus:
		return &m.status
	case protocol.PropertyStatusMessage:
		return &m.statusMessage
	case protocol.PropertyStore:
		return &m.store
	case protocol.PropertyInstance:
		return &m.instance
	}
	return nil
}

// reply turns a status of 400 or more into an error. After 408 and 5xx it is not known
// whether the request was applied; after any other it was not. A reply without a status
// counts as a success.
func (m *message) reply(store, instance string) (Reply, error) {
	const timeout, serverError = 408, 500 // as in HTTP, like statusUnavailable
	status, err := strconv.Atoi(string(m.status))
	if err != nil || status < 400 {
		return Reply{Payload: bytes.Clone(m.payload), Timestamp: string(m.timestamp), Store: store, Instance: instance}, nil
	}
	rejected := &RejectedError{Code: status, Reason: string(m.statusMessage)}
	if status == timeout || status >= serverError {
		return Reply{}, unknown(rejected)
	}
	return Reply{}, rejected
}
