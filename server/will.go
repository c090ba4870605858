package server

import (
	"fmt"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// setWillRequest stores a Will that is a request with its connection, and removes it from mochi,
// which would publish it. It refuses a Will that could never be applied: when it is due, its
// client can no longer be told what is wrong.
func (s *Server) setWillRequest(identity access.Identity, cl *mochi.Client, conn *connection, pk packets.Packet) *packets.Code {
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
		dialect:       statestore.DialectOf(userProperty(properties, protocol.PropertyProtocolVersion) != nil),
		isWill:        true,
	}
	command, refused := s.checkWill(identity, cl, will, pk.Connect.WillProperties.WillDelayInterval)
	if refused != nil {
		return refusal(*refused, "a Will for the state store must be a valid request: "+refused.Reason)
	}
	conn.willCommand = &command
	conn.will, cl.Properties.Will = &will, mochi.Will{}
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

// endsWith reports whether the Will of a connection releases what a SET that comes over it sets: then
// the key must not outlive this process either (docs/adr/0005). If the client may not release the key,
// its Will does not, and the key has its lifetime.
func (s *Server) endsWith(conn *connection, command *statestore.Command) bool {
	return conn.willCommand != nil && command.ReleasedBy(conn.willCommand) &&
		s.options.Authorizer.Authorize(conn.identity, statestore.VerbVDel, command.Key)
}

// checkWill parses and checks a Will as a request, except for what can change (authorization, the
// clock, fencing), which is checked when the Will is applied.
func (s *Server) checkWill(identity access.Identity, cl *mochi.Client, will request, delay uint32) (command statestore.Command, refused *packets.Code) {
	if why := s.checkRequest(identity, cl, will); why != "" {
		return command, refusal(codeOf(why), string(why))
	}
	if delay > 0 {
		return command, refusal(packets.ErrImplementationSpecificError, fmt.Sprintf("it is applied when the connection ends, so its Will Delay Interval must be 0, not %d", delay))
	}
	command = s.parse(cl, will)
	if err := command.Err(); err != nil {
		return command, refusal(packets.ErrImplementationSpecificError, err.Error())
	}
	if command.Verb == statestore.VerbSet && will.timestamp == nil {
		return command, refusal(packets.ErrImplementationSpecificError, string(protocol.MissingTimestamp))
	}
	for _, text := range []*string{will.timestamp, will.fencingToken} {
		if text == nil {
			continue
		}
		if _, err := hlc.Parse(*text); err != nil {
			return command, refusal(packets.ErrImplementationSpecificError, string(protocol.MalformedTimestamp))
		}
	}
	return command, nil
}

// applyWill applies the request that a client set as its Will, as if the client had sent it last:
// with its client id and its rights. The goroutine that reads the connection calls it once, when
// it has read everything else.
//
// When the server stops, no Wills are applied: the package comment says why.
func (s *Server) applyWill(cl *mochi.Client, conn *connection) {
	will := conn.will
	if will == nil || s.stopping.Load() {
		return
	}
	conn.will = nil                    // once, even if this panics
	conn.reserved = will.responseTopic // reserved at CONNECT
	reply, later, fault := s.handle(cl, conn, *will)
	conn.readTurn.End()
	if fault != nil {
		return // counted and logged, as for any request
	}
	if !later && !envelope.IsClientTopic(will.responseTopic) { // the only client that could read it there is gone
		encoded := s.encodeReply(cl, will.responseTopic, will.correlation, reply)
		s.publishReply(encoded, nil)
		encoded.free()
	}
	s.count(func(stats *Stats) { stats.AppliedWills++ })
	s.logger.Debug("applied a Will", "client", logs.Name(cl.ID))
}

// ordinaryWill is a Will that is not a request: a message to be published when the connection ends
// without a normal DISCONNECT.
type ordinaryWill struct {
	message  pubsub.Message
	expiry   uint32 // the Message Expiry Interval in seconds, from when the Will is published
	delay    time.Duration
	identity access.Identity
	due      time.Time // when the delay is over
}

// setOrdinaryWill stores an ordinary Will with its connection, and removes it from mochi, which has
// no subscribers.
func (s *Server) setOrdinaryWill(identity access.Identity, cl *mochi.Client, conn *connection, pk packets.Packet) {
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
		expiry:   properties.MessageExpiryInterval,
		delay:    time.Duration(properties.WillDelayInterval) * time.Second,
		identity: identity,
	}
	cl.Properties.Will = mochi.Will{}
}

// willProperties returns the encoded properties with which a Will is published.
func willProperties(p packets.Properties) []byte {
	var wired []byte
	if p.PayloadFormatFlag {
		wired = append(wired, packets.PropPayloadFormat, p.PayloadFormat)
	}
	wired = mqtt.AppendProperty(wired, packets.PropContentType, p.ContentType)
	wired = mqtt.AppendProperty(wired, packets.PropResponseTopic, p.ResponseTopic)
	wired = mqtt.AppendProperty(wired, packets.PropCorrelationData, p.CorrelationData)
	for _, property := range p.User {
		wired = mqtt.AppendUserProperty(wired, property.Key, property.Val)
	}
	return wired
}

// publishOrDelayWill publishes the Will of a connection that ended. If it has a delay and the
// session is kept, it waits: if the client comes back in time, it is not published
// [MQTT-3.1.3-9]. It is called like applyWill. When the server stops, no Wills are published.
func (s *Server) publishOrDelayWill(cl *mochi.Client, conn *connection, sessionEnds bool) {
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

// delayedWillTimeout is how long a Will that is due waits while a connection of its client is
// being established. Connections that fail one after the other must not delay it forever.
const delayedWillTimeout = 10 * time.Second

// publishDueWills publishes the Wills whose delay is over.
func (s *Server) publishDueWills(now time.Time) {
	var due []access.Identity
	s.mu.Lock()
	for _, will := range s.delayedWills {
		if !now.Before(will.due) {
			due = append(due, will.identity)
		}
	}
	s.mu.Unlock()
	for _, identity := range due {
		s.publishDueWill(identity, now)
	}
}

// publishDueWill publishes the Will of a client if it is still due. While the client id is locked, no
// connection of the client is established, so no Will is published after a CONNACK [MQTT-3.1.3-9].
// Only without the lock, after delayedWillTimeout, can a client come back between check and message.
func (s *Server) publishDueWill(identity access.Identity, now time.Time) {
	release, locked := s.clientIDs.tryLock(identity.Client, identity.User)
	if locked {
		defer release()
	}
	if will := s.takeDueWill(identity.Client, now, locked); will != nil {
		s.publishOrdinaryWill(will)
	}
}

// takeDueWill is takeDelayedWill if the Will is due and its client is not connected.
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

// takeDelayedWill removes and returns the Will of a client that waits for its delay, or nil.
func (s *Server) takeDelayedWill(client string) *ordinaryWill {
	s.mu.Lock()
	defer s.mu.Unlock()
	will := s.delayedWills[client]
	delete(s.delayedWills, client)
	return will
}

// publishOrdinaryWill publishes a Will if its client may still publish to the topic. Goroutines of
// other clients and of the server call it, so it recovers from a panic of the rules.
func (s *Server) publishOrdinaryWill(will *ordinaryWill) {
	defer func() {
		if value := recover(); value != nil {
			s.notePanic(value, "client", logs.Name(will.identity.Client))
		}
	}()
	if !s.mayPublishWill(will.identity, will.message.Topic) {
		s.logger.Debug("a Will was not published", "client", logs.Name(will.identity.Client), "topic", logs.Name(will.message.Topic))
		return
	}
	message := will.message
	if will.expiry > 0 {
		message.Expires = time.Now().Add(time.Duration(will.expiry) * time.Second)
	}
	if _, err := s.messages.Publish(&message); err != nil {
		s.logger.Debug("a Will was not retained", "client", logs.Name(will.identity.Client), "error", logs.Error(err))
	}
}
