package server

import (
	"encoding/binary"
	"fmt"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// keepWill keeps the Will in a CONNECT that is a request with the connection, and takes
// it away from the broker, which would publish it to whoever listens inside. It refuses
// a Will that could never be applied: when its time comes there is nobody left who could
// be told what it lacks.
func (s *Server) setWillRequest(who access.Identity, cl *mqtt.Client, conn *connection, pk packets.Packet) *packets.Code {
	properties := pk.Connect.WillProperties
	will := request{
		qos:           pk.Connect.WillQos,
		retain:        pk.Connect.WillRetain,
		responseTopic: properties.ResponseTopic,
		correlation:   properties.CorrelationData,
		expiry:        properties.MessageExpiryInterval,
		timestamp:     userProperty(properties, protocol.PropertyTimestamp),
		fencingToken:  userProperty(properties, protocol.PropertyFencingToken),
		store:         userProperty(properties, protocol.PropertyStore),
		payload:       pk.Connect.WillPayload,
		isWill:        true,
	}
	if refused := s.checkWill(who, cl, will, pk.Connect.WillProperties.WillDelayInterval); refused != nil {
		return refusal(*refused, "a Will for the state store must be a valid request: "+refused.Reason)
	}
	conn.will, cl.Properties.Will = &will, mqtt.Will{}
	return nil
}

// userProperty returns the first user property of a name, or nil.
func userProperty(properties packets.Properties, name string) *string {
	for i := range properties.User {
		if properties.User[i].Key == name {
			return &properties.User[i].Val
		}
	}
	return nil
}

// checkWill judges a Will as the request that it is to be. What depends on the moment
// (authorization, the clock, fencing) is judged in the moment in which it is applied.
func (s *Server) checkWill(who access.Identity, cl *mqtt.Client, will request, delay uint32) *packets.Code {
	if why := s.checkRequest(who, cl, will); why != "" {
		return refusal(codeOf(why), string(why))
	}
	if delay > 0 {
		return refusal(packets.ErrImplementationSpecificError, fmt.Sprintf("it is applied when the connection ends, so its Will Delay Interval must be 0, not %d", delay))
	}
	command := s.parse(cl, will)
	if err := command.Err(); err != nil {
		return refusal(packets.ErrImplementationSpecificError, err.Error())
	}
	if command.Verb == statestore.VerbSet && will.timestamp == nil {
		return refusal(packets.ErrImplementationSpecificError, string(protocol.MissingTimestamp))
	}
	for _, text := range []*string{will.timestamp, will.fencingToken} {
		if text == nil {
			continue
		}
		if _, err := hlc.Parse(*text); err != nil {
			return refusal(packets.ErrImplementationSpecificError, string(protocol.MalformedTimestamp))
		}
	}
	return nil
}

// applyWill applies the request that a client left as its Will: now, in its name and
// with its rights, as if it had sent it as its last. It must be called once, by the
// goroutine that read the connection, when nothing else is left to read.
//
// When the server stops, no Wills are applied. The clients live; and a lease that is
// released then would be granted, by a store that will have forgotten it in a moment, to
// some other client that is still to be sent away.
func (s *Server) applyWill(cl *mqtt.Client, conn *connection) {
	will := conn.will
	if will == nil || s.stopping.Load() {
		return
	}
	conn.will = nil                    // if it panics, it is not tried again
	conn.reserved = will.responseTopic // for the Will, since CONNECT
	message, fault := s.handle(cl, conn, *will)
	conn.readTurn.End()
	if fault != nil {
		return // counted and logged, as for any request
	}
	if !envelope.IsClientTopic(message.Topic) { // the only reader there is gone
		s.publishReply(&message, nil)
	}
	s.count(func(stats *Stats) { stats.AppliedWills++ })
	s.logger.Debug("applied a Will", "client", logs.Name(cl.ID))
}

// testament is an ordinary Will: a message to be published when the connection ends without
// a normal DISCONNECT.
type ordinaryWill struct {
	message pubsub.Message
	expiry  uint32 // the Message Expiry Interval, which counts from when it is published
	delay   time.Duration
	who     access.Identity
	due     time.Time // while it waits for the client to come back
}

// keepTestament keeps the ordinary Will in a CONNECT with the connection, and takes it away
// from mochi, which has no subscribers to publish it to.
func (s *Server) setOrdinaryWill(who access.Identity, cl *mqtt.Client, conn *connection, pk packets.Packet) {
	properties := pk.Connect.WillProperties
	conn.ordinaryWill = &ordinaryWill{
		message: pubsub.Message{
			Topic:      pk.Connect.WillTopic,
			QoS:        min(pk.Connect.WillQos, 1),
			Retain:     pk.Connect.WillRetain,
			Properties: willProperties(properties),
			Payload:    pk.Connect.WillPayload,
			Publisher:  cl.ID,
		},
		expiry: properties.MessageExpiryInterval,
		delay:  time.Duration(properties.WillDelayInterval) * time.Second,
		who:    who,
	}
	cl.Properties.Will = mqtt.Will{}
}

// willProperties returns the properties of a Will that are published, as they lie on the
// wire.
func willProperties(p packets.Properties) []byte {
	var wired []byte
	text := func(identifier byte, values ...string) {
		wired = append(wired, identifier)
		for _, value := range values {
			wired = append(binary.BigEndian.AppendUint16(wired, uint16(len(value))), value...)
		}
	}
	if p.PayloadFormatFlag {
		wired = append(wired, wire.PayloadFormat, p.PayloadFormat)
	}
	if p.ContentType != "" {
		text(wire.ContentType, p.ContentType)
	}
	if p.ResponseTopic != "" {
		text(wire.ResponseTopic, p.ResponseTopic)
	}
	if len(p.CorrelationData) > 0 {
		text(wire.CorrelationData, string(p.CorrelationData))
	}
	for _, property := range p.User {
		text(wire.UserProperty, property.Key, property.Val)
	}
	return wired
}

// leaveTestament publishes the Will of a connection that ended, or lets it wait for its
// delay if the session is kept: if the client comes back before, it is not published
// [MQTT-3.1.3-9]. It is called like applyWill. When the server stops, no Wills are published.
func (s *Server) publishOrDelayWill(cl *mqtt.Client, conn *connection, sessionEnds bool) {
	will := conn.ordinaryWill
	if will == nil || s.stopping.Load() {
		return
	}
	conn.ordinaryWill = nil
	if will.delay == 0 || sessionEnds {
		s.publishOrdinaryWill(will)
		return
	}
	will.due = time.Now().Add(will.delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delayedWills[cl.ID] = will
}

// testamentPatience is how long a Will that is due waits for a connection of its client that
// is being established. Connections that fail one after the other must not put it off for
// ever.
const delayedWillTimeout = 10 * time.Second

// publishTestaments publishes the Wills whose delay is over.
func (s *Server) publishDueWills(now time.Time) {
	var due []access.Identity
	s.mu.Lock()
	for _, will := range s.delayedWills {
		if !now.Before(will.due) {
			due = append(due, will.who)
		}
	}
	s.mu.Unlock()
	for _, who := range due {
		s.publishDueWill(who, now)
	}
}

// publishDueTestament publishes the Will of a client, if it is still due: the client may
// have come back while the Wills of others were published. While it has the lock on the
// client id, no connection of the client is established; so a client that has its CONNACK
// is not called gone afterwards [MQTT-3.1.3-9]. Only without the lock, after
// testamentPatience, can a client come back between the look and the message.
func (s *Server) publishDueWill(who access.Identity, now time.Time) {
	release, locked := s.clientIDs.tryLock(who.Client, who.User)
	if locked {
		defer release()
	}
	if will := s.takeDueWill(who.Client, now, locked); will != nil {
		s.publishOrdinaryWill(will)
	}
}

// takeDueTestament is takeTestament for a Will that is due, and whose client is not connected.
func (s *Server) takeDueWill(client string, now time.Time, locked bool) *ordinaryWill {
	s.mu.Lock()
	defer s.mu.Unlock()
	will := s.delayedWills[client]
	switch {
	case will == nil, now.Before(will.due), s.connections[client] != nil:
		return nil
	case !locked && now.Sub(will.due) < delayedWillTimeout:
		return nil
	}
	delete(s.delayedWills, client)
	return will
}

// takeTestament returns the Will of a client that waits, which does so no longer, or nil.
func (s *Server) takeDelayedWill(client string) *ordinaryWill {
	s.mu.Lock()
	defer s.mu.Unlock()
	will := s.delayedWills[client]
	delete(s.delayedWills, client)
	return will
}

// publishTestament publishes a Will, unless its client may not publish to the topic any more:
// rules change, and so may who owns a topic below clients/. It is called by goroutines of
// other clients and of the server, to which a panic of the rules must do no harm.
func (s *Server) publishOrdinaryWill(will *ordinaryWill) {
	defer func() {
		if value := recover(); value != nil {
			s.notePanic(value, "client", logs.Name(will.who.Client))
		}
	}()
	if !s.mayPublishWill(will.who, will.message.Topic) {
		s.logger.Debug("a Will was not published", "client", logs.Name(will.who.Client), "topic", logs.Name(will.message.Topic))
		return
	}
	message := will.message
	if will.expiry > 0 {
		message.Expires = time.Now().Add(time.Duration(will.expiry) * time.Second)
	}
	if _, err := s.messages.Publish(&message); err != nil {
		s.logger.Debug("a Will was not retained", "client", logs.Name(will.who.Client), "error", logs.Error(err))
	}
}
