package server

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/statestore"
)

// admitWill returns why the Will in a CONNECT is refused, or nil, and stores the Will with the
// connection.
func (s *Server) admitWill(conn *connection, will *mqtt.Publish) *mqtt.Refusal {
	topic := string(will.Topic)
	switch {
	case will.QoS > 1:
		return refusal(mqtt.QoSNotSupported, noQoS2) // [MQTT-3.2.2-12]
	case will.WillDelay > 0:
		return mqtt.Refuse(mqtt.ImplementationError,
			"a Will is published when its connection ends, so its Will Delay Interval must be 0, not %d", will.WillDelay)
	case topic == protocol.InvokeTopic:
		return s.setWillRequest(conn, will)
	case !s.mayLeaveWill(conn.identity, topic): // when the Will is due, the client can no longer be told
		return refusal(mqtt.NotAuthorized, envelope.WillNotAllowed)
	case will.Retain:
		return refusal(mqtt.RetainNotSupported, noneRetained) // [MQTT-3.2.2-13]
	}
	message := conn.message(topic, will)
	message.Payload = bytes.Clone(will.Payload) // without the bytes of the CONNECT
	conn.ordinaryWill, conn.willExpiry = &message, will.MessageExpiry
	return nil
}

// setWillRequest stores a Will that is a request with its connection. It refuses a Will that could never be
// applied, since its client can no longer be told when it is due. What can change (authorization, the
// clock, fencing) is checked then.
func (s *Server) setWillRequest(conn *connection, asked *mqtt.Publish) *mqtt.Refusal {
	will := new(requestTexts).request(asked)
	will.isWill, will.Publish = true, &mqtt.Publish{ // without the bytes of the CONNECT
		QoS:             asked.QoS,
		Retain:          asked.Retain,
		MessageExpiry:   asked.MessageExpiry,
		CorrelationData: bytes.Clone(asked.CorrelationData),
		Payload:         bytes.Clone(asked.Payload),
	}
	command := s.parse(conn, &will)
	code, wrong := byte(mqtt.ImplementationError), command.Err()
	switch why := s.checkRequest(conn, will); {
	case why != "":
		code, wrong = codeOf(why), errors.New(string(why))
	case wrong != nil:
	case command.Verb == statestore.VerbSet && will.timestamp == nil:
		wrong = protocol.MissingTimestamp
	case !isTimestamp(will.timestamp) || !isTimestamp(will.fencingToken):
		wrong = protocol.MalformedTimestamp
	}
	if wrong != nil {
		return refusal(code, "a Will for the state store must be a valid request: "+wrong.Error())
	}
	conn.will, conn.willCommand = &will, &command
	return nil
}

func isTimestamp(text *string) bool {
	if text == nil {
		return true
	}
	_, err := hlc.Parse(*text)
	return err == nil
}

// endsWith reports whether the Will of a connection releases what a SET that comes over it sets: then
// the key must not outlive this process either (docs/adr/0005). If the client may not release the key,
// its Will does not, and the key has its lifetime.
func (s *Server) endsWith(conn *connection, command *statestore.Command) bool {
	return conn.willCommand != nil && command.ReleasedBy(conn.willCommand) &&
		s.options.Authorizer.Authorize(conn.identity, statestore.VerbVDel, command.Key)
}

// endWill applies or publishes the Will of a connection that has ended, unless a normal DISCONNECT has
// withdrawn it [MQTT-3.1.2-8, MQTT-3.1.2-10]. The goroutine that reads the connection calls it once, when it
// has read everything else. When the server stops, no Wills are applied: the package comment says why.
func (c *connection) endWill() error {
	s, will := c.server, c.ordinaryWill
	switch {
	case c.why.Load() == endLeft || s.running.Err() != nil:
	case c.will != nil:
		s.applyWill(c)
	// Rules and response topics may have changed.
	case will != nil && s.mayLeaveWill(c.identity, will.Topic) && s.mayPublish(c.identity, will.Topic):
		will.Expires = expiryOf(c.willExpiry)
		c.readTurn.Begin()
		defer c.readTurn.End()
		s.publish(will, c.readTurn)
	}
	return nil
}

// willPatience bounds how long a Will waits while too much waits for a commit. The next connection of its client
// waits meanwhile, and the journal may never go on.
const willPatience = 5 * time.Second

// applyWill applies the request that a client set as its Will, as if the client had sent it last:
// with its client id and its rights.
func (s *Server) applyWill(conn *connection) {
	will := *conn.will
	if dropped := s.checkRequest(conn, will); dropped != "" {
		s.drop(conn, dropped)
		return
	}
	ctx, cancel := context.WithTimeout(s.running, willPatience)
	defer cancel()
	if s.engine.AwaitCapacity(ctx) != nil {
		if s.running.Err() == nil {
			s.drop(conn, DroppedJournalSlow)
		}
		return
	}
	conn.readTurn.Begin()
	defer conn.readTurn.End()
	_, fault := s.submit(conn, s.command(conn, &will), func(reply statestore.Reply) {
		s.answered(reply)
		if !envelope.IsClientTopic(will.responseTopic) { // only the client, which is gone, could read that
			s.tasks.Go(func() { s.publishWillReply(&will, reply) })
		}
	})
	if fault == nil { // else it is counted and logged, as for any request
		s.count(func(stats *Stats) { stats.AppliedWills++ })
	}
}

// publishWillReply publishes the reply to a Will where other clients may read it.
func (s *Server) publishWillReply(will *request, reply statestore.Reply) {
	turn := s.processors.NewPlace()
	defer turn.End()
	s.publishReply(will.responseTopic, s.encodeReply(will.responseTopic, will.CorrelationData, reply), turn)
}
