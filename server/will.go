package server

import (
	"bytes"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// setWillRequest stores a Will that is a request with its connection. It refuses a Will that could never be
// applied: when it is due, its client can no longer be told what is wrong.
func (s *Server) setWillRequest(conn *connection, asked *mqtt.Publish) *mqtt.Refusal {
	will := new(requestTexts).request(asked)
	will.isWill, will.Publish = true, &mqtt.Publish{ // without the bytes of the CONNECT
		QoS:             asked.QoS,
		Retain:          asked.Retain,
		MessageExpiry:   asked.MessageExpiry,
		CorrelationData: bytes.Clone(asked.CorrelationData),
		Payload:         bytes.Clone(asked.Payload),
	}
	command, refused := s.checkWill(conn, will, asked.WillDelay)
	if refused != nil {
		return refusal(refused.Code, "a Will for the state store must be a valid request: "+refused.Reason)
	}
	conn.will, conn.willCommand = &will, &command
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
func (s *Server) checkWill(conn *connection, will request, delay uint32) (command statestore.Command, refused *mqtt.Refusal) {
	if why := s.checkRequest(conn, will); why != "" {
		return command, refusal(codeOf(why), string(why))
	}
	if delay > 0 {
		return command, mqtt.Refuse(mqtt.ImplementationError, "it is applied when the connection ends, so its Will Delay Interval must be 0, not %d", delay)
	}
	command = s.parse(conn, will)
	if err := command.Err(); err != nil {
		return command, refusal(mqtt.ImplementationError, err.Error())
	}
	if command.Verb == statestore.VerbSet && will.timestamp == nil {
		return command, refusal(mqtt.ImplementationError, string(protocol.MissingTimestamp))
	}
	for _, text := range []*string{will.timestamp, will.fencingToken} {
		if text == nil {
			continue
		}
		if _, err := hlc.Parse(*text); err != nil {
			return command, refusal(mqtt.ImplementationError, string(protocol.MalformedTimestamp))
		}
	}
	return command, nil
}

// settleWill applies or publishes the Will of a connection that has ended, unless a normal DISCONNECT has
// withdrawn it [MQTT-3.1.2-8, MQTT-3.1.2-10]. The goroutine that reads the connection calls it once, when it
// has read everything else.
func (c *connection) settleWill() error {
	defer c.readTurn.End()
	if c.ended != nil {
		c.server.applyWill(c)
		c.server.publishOrDelayWill(c)
	}
	return nil
}

// applyWill applies the request that a client set as its Will, as if the client had sent it last:
// with its client id and its rights.
//
// When the server stops, no Wills are applied: the package comment says why.
func (s *Server) applyWill(conn *connection) {
	will := conn.will
	if will == nil || s.stopping.Load() {
		return
	}
	conn.reserved = will.responseTopic // reserved at CONNECT
	fault := s.handle(conn, *will)
	conn.readTurn.End()
	if fault != nil {
		return // counted and logged, as for any request
	}
	s.count(func(stats *Stats) { stats.AppliedWills++ })
	s.logger.Debug("applied a Will", "client", logs.Name(conn.identity.Client))
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

// setOrdinaryWill stores an ordinary Will with its connection.
func setOrdinaryWill(conn *connection, asked *mqtt.Publish) {
	conn.ordinaryWill = &ordinaryWill{
		message:  conn.message(string(asked.Topic), asked),
		expiry:   asked.MessageExpiry,
		delay:    time.Duration(asked.WillDelay) * time.Second,
		identity: conn.identity,
	}
	conn.ordinaryWill.message.Payload = bytes.Clone(asked.Payload) // without the bytes of the CONNECT
}

// publishOrDelayWill publishes the Will of a connection that ended. If it has a delay and the
// session is kept, it waits: if the client comes back in time, it is not published
// [MQTT-3.1.3-9]. When the server stops, no Wills are published.
func (s *Server) publishOrDelayWill(conn *connection) {
	will := conn.ordinaryWill
	if will == nil || s.stopping.Load() {
		return
	}
	if will.delay == 0 || conn.sessionExpiry() == 0 {
		s.publishOrdinaryWill(will, conn.readTurn)
		return
	}
	will.due = time.Now().Add(will.delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	conn.client.will = will
}

// delayedWillTimeout is how long a Will that is due waits while a connection of its client is
// being established. Connections that fail one after the other must not delay it forever.
const delayedWillTimeout = 10 * time.Second

// publishDueWills publishes the Wills whose delay is over.
func (s *Server) publishDueWills(now time.Time) {
	var due []access.Identity
	s.eachClient(func(c *client) {
		if c.will != nil && !now.Before(c.will.due) {
			due = append(due, c.identity)
		}
	})
	turn := s.processors.NewPlace()
	for _, identity := range due {
		s.publishDueWill(identity, now, turn)
	}
}

// publishDueWill publishes the Will of a client if it is still due. While the client id is locked, no
// connection of the client is established, so no Will is published after a CONNACK [MQTT-3.1.3-9].
// Only without the lock, after delayedWillTimeout, can a client come back between check and message.
func (s *Server) publishDueWill(identity access.Identity, now time.Time, turn *fairqueue.Place) {
	release, locked := s.clientIDs.tryLock(identity.Client)
	if locked {
		defer release()
	}
	if will := s.takeDueWill(identity.Client, now, locked); will != nil {
		s.publishOrdinaryWill(will, turn)
	}
}

// takeDueWill is takeDelayedWill if the Will is due and its client is not connected.
func (s *Server) takeDueWill(id string, now time.Time, locked bool) *ordinaryWill {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[id]
	switch {
	case c == nil, c.conn != nil, c.will == nil, now.Before(c.will.due):
		return nil
	case !locked && now.Sub(c.will.due) < delayedWillTimeout:
		return nil
	}
	return c.takeWill()
}

// takeDelayedWill removes and returns the Will of a client that waits for its delay, or nil.
func (s *Server) takeDelayedWill(id string) *ordinaryWill {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[id]; c != nil {
		return c.takeWill()
	}
	return nil
}

func (c *client) takeWill() (will *ordinaryWill) {
	will, c.will = c.will, nil
	return will
}

// publishOrdinaryWill publishes a Will if its client may still publish to the topic, in turns at the place of
// the goroutine that calls it. Goroutines of other clients and of the server call it, so it recovers from a
// panic of the rules.
func (s *Server) publishOrdinaryWill(will *ordinaryWill, turn *fairqueue.Place) {
	defer func() {
		turn.End() // it may have panicked in a turn
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
	turn.Begin()
	s.messages.Publish(&message, turn.Yield)
	turn.End()
}
