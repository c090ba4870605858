package server

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// establish reads the CONNECT of a client and handles it [MQTT-3.1]. It returns nil once the session is
// established, and otherwise why it is not. The client then knows, as far as it may.
func (c *connection) establish() error {
	if err := c.handshake(); err != nil {
		return err
	}
	if _, err := c.input.Next(); err != nil {
		return c.failed(err)
	}
	c.readTurn.End()
	connect := c.gate.Connect
	c.gate.Connect = nil // it has a password
	return c.server.connect(c, connect)
}

// connect does the steps of a CONNECT in the order of the standard [MQTT-3.1.4]: checks, take-over, session,
// CONNACK. The client id is locked from the check that it is free until the session is established.
func (s *Server) connect(conn *connection, asked *wire.Connect) error {
	var assigned string
	if conn.identity.Client = asked.ClientID; asked.ClientID == "" {
		assigned = rand.Text() // [MQTT-3.1.3-6]
		conn.identity.Client = assigned
	}
	if err := s.authenticate(conn, asked); err != nil {
		return err
	}
	// Not earlier: a client that has not authenticated must not make others wait for a client id.
	if err := s.lockClientID(conn); err != nil {
		return err
	}
	if conn.closed.Load() {
		return net.ErrClosed // so that it takes no session over
	}
	if refused := s.admit(conn, asked.Will); refused != nil {
		conn.unlockID() // before the answer, which may have to wait for the client
		return s.refuse(conn, RefusedRules, refused,
			"user", logs.Name(conn.identity.User), "reason", logs.Text(refused.Reason))
	}
	seconds := limitKeepAlive(asked.KeepAlive, conn.gate.Version)
	conn.silenceAllowed = time.Duration(seconds) * time.Second * 3 / 2
	announced := s.announce(conn)
	if announced.AssignedClientID = assigned; seconds != asked.KeepAlive {
		announced.ServerKeepAlive = &seconds // [MQTT-3.1.2-21]
	}
	// Before anything is taken from a client that has the id. A session from before makes it no larger.
	if _, ok := conn.gate.AppendAccepted(nil, false, announced); !ok { // [MQTT-3.1.2-24]
		s.noteRefusal(conn, RefusedRules, "user", logs.Name(conn.identity.User), "reason", errSmallPackets)
		return errSmallPackets
	}
	if old := s.connectionOf(conn.identity.Client); old != nil {
		s.takeOver(old, conn)
	}
	present := s.enter(conn, asked.CleanStart)
	connack, _ := conn.gate.AppendAccepted(nil, present, announced)
	if err := conn.send(connack); err != nil {
		conn.ended = err
		return err
	}
	conn.extendDeadline()
	conn.unlockID() // from now on the next connection with the client id finds this one
	s.startSession(conn, asked.ReceiveMaximum)
	return nil
}

var errSmallPackets = errors.New("the client takes no packet of the size of a CONNACK")

// announce returns what CONNACK says about the server [MQTT-3.2.2.3].
func (s *Server) announce(conn *connection) *packets.Properties {
	qos, none, longest := byte(1), byte(0), uint32(maxSessionExpiry)
	announced := &packets.Properties{
		MaximumQOS:         &qos,
		MaximumPacketSize:  &s.options.MaxPacketSize,
		RetainAvailable:    &none,
		SharedSubAvailable: &none,
	}
	if window := uint16(max(s.options.Store.DedupWindow, 0)); window > 0 {
		announced.ReceiveMaximum = &window // the store recognizes as many redeliveries
	}
	if conn.gate.SessionExpiry > longest {
		announced.SessionExpiryInterval = &longest
	}
	return announced
}

// lockClientID locks the client id of a connection, and waits while another connection with the
// same client id is being established. If that takes too long, it sends CONNACK with the reason
// and returns an error.
func (s *Server) lockClientID(conn *connection) error {
	user := logs.Name(conn.identity.User)
	if refused := s.checkID(conn.identity); refused != nil { // before it waits for nothing
		return s.refuse(conn, RefusedRules, refused, "user", user, "reason", logs.Text(refused.Reason))
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.clientIDs.timeout)
	defer cancel()
	conn.cancelWait.Store(&cancel)
	defer conn.cancelWait.Store(nil) // the context would last as long as the connection
	if conn.closed.Load() {
		cancel()
	}
	release, err := s.clientIDs.lock(ctx, conn.identity.Client, conn.identity.User)
	switch {
	case err == nil:
		conn.unlock = release
		return nil
	case conn.closed.Load():
		return net.ErrClosed
	}
	busy := mqtt.Refuse(mqtt.ServerBusy, "%v: try again later", err)
	return s.refuse(conn, RefusedTurn, busy, "user", user, "error", logs.Error(err))
}

// unlockID unlocks the client id, if the connection has locked it.
func (c *connection) unlockID() {
	if c.unlock != nil {
		c.unlock()
		c.unlock = nil
	}
}

// checkID refuses a client id whose plain response topic (docs/protocol.md §1.2) would belong to the store or
// to another client, and one that another user has.
func (s *Server) checkID(identity access.Identity) *mqtt.Refusal {
	topic := envelope.ClientTopics + identity.Client
	if envelope.IsBelow(topic, envelope.StoreTopics) || strings.ContainsAny(identity.Client, "/+#") {
		return mqtt.Refuse(mqtt.InvalidClientID, "no reply can reach this client id on clients/{client id}/…: choose one that is not \"statestore\" and has no / + or #")
	}
	if user, known := s.userOf(identity.Client); known && user != identity.User {
		// The session, and the messages in it, belong to the other user.
		return mqtt.Refuse(mqtt.NotAuthorized, "this client id is in use by another user")
	}
	return nil
}

// admit returns why a client may not connect, or nil. It stores the Will with the connection, which has
// locked the client id.
func (s *Server) admit(conn *connection, will *mqtt.Publish) *mqtt.Refusal {
	id := conn.identity.Client
	if refused := s.checkID(conn.identity); refused != nil {
		return refused
	}
	if present := s.connectionOf(id); present != nil && present.number > conn.number {
		// A CONNECT that waited, for its password or in a server that was frozen. Its client has given up, and
		// must not lose the connection that it has opened since.
		return mqtt.Refuse(mqtt.ServerBusy, "this client has opened another connection since")
	}
	if !s.clientIDs.claim(id, s.hasSession) {
		return mqtt.Refuse(mqtt.InvalidClientID, "another client, connected or with a session that is kept, has an id of which this one is the upper-case hex, or the reverse: "+
			"both would own the same topics below clients/; choose another client id, or end that session")
	}
	if s.options.Journal != nil && len(id) > maxDurableClientID {
		return mqtt.Refuse(mqtt.InvalidClientID, "the client id has %d bytes; a server that keeps its data takes at most %d", len(id), maxDurableClientID)
	}
	if !s.hasSession(id) && s.isFull() {
		return mqtt.Refuse(mqtt.QuotaExceeded, "the server has its %d clients, connected or with a session that is kept; Options.MaxClients, --max-clients or --max-memory allows more", s.options.MaxClients)
	}
	if will == nil {
		return nil
	}
	return s.admitWill(conn, will)
}

// maxDurableClientID bounds a client id in bytes, if there is a journal: that has it once for each
// reply that it remembers, so long ids would fill a disk.
const maxDurableClientID = 256

// admitWill returns why the Will in a CONNECT is refused, or nil, and stores the Will with the
// connection.
func (s *Server) admitWill(conn *connection, will *mqtt.Publish) *mqtt.Refusal {
	topic := string(will.Topic)
	switch {
	case will.QoS > 1:
		return mqtt.Refuse(mqtt.QoSNotSupported, noQoS2) // [MQTT-3.2.2-12]
	case topic == protocol.InvokeTopic:
		return s.setWillRequest(conn, will)
	case !s.mayLeaveWill(conn.identity, topic): // when the Will is due, the client can no longer be told
		return mqtt.Refuse(mqtt.NotAuthorized, envelope.WillNotAllowed)
	case will.Retain:
		return mqtt.Refuse(mqtt.RetainNotSupported, noneRetained) // [MQTT-3.2.2-13]
	}
	setOrdinaryWill(conn, will)
	return nil
}

// refuse sends CONNACK with the reason to a client that is not admitted, counts that, and returns the
// reason. The connection ends.
func (s *Server) refuse(conn *connection, why RefusalReason, answer *mqtt.Refusal, attributes ...any) error {
	s.noteRefusal(conn, why, attributes...)
	if connack := conn.gate.AppendRefused(nil, answer, ""); len(connack) > 0 {
		_ = conn.send(connack) // the connection ends either way
	}
	return answer
}

// noteRefusal counts and logs that a client is not admitted.
func (s *Server) noteRefusal(conn *connection, why RefusalReason, attributes ...any) {
	s.countRefused(why)
	s.refusals.Log(append([]any{"client", logs.Name(conn.identity.Client), "remote", conn.remote}, attributes...)...)
}

// takeOver ends a connection because its client has opened another one, next, and returns when it is over
// [MQTT-3.1.4-3].
//
// A client that leaves and comes back at once has often sent a DISCONNECT that is not read yet.
// Closing the connection at once would lose it, and apply a Will that the client has withdrawn.
func (s *Server) takeOver(old, next *connection) {
	old.replaced.Store(true)
	timeout := time.NewTimer(takeOverTimeout)
	defer timeout.Stop()
	select {
	case <-old.over:
		return
	case <-timeout.C:
	}
	s.log.TakenOver(old.seen, old.identity.Client, old.identity.User, next.remote, old.remote)
	old.disconnect(mqtt.Refuse(mqtt.TakenOver, "session takeover"))
	<-old.over
}
