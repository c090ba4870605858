package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/semaphore"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
)

const (
	// takeOverTimeout is how long a connection may take to deliver its DISCONNECT when its
	// client has opened another one.
	takeOverTimeout = 50 * time.Millisecond
	// maxSessionExpiry bounds, in seconds, how long the session of a client that is gone
	// is kept.
	maxSessionExpiry = 3600
	// maxDurableClientID bounds a client id in bytes, if there is a journal: that has it once for each
	// reply that it remembers, so long ids would fill a disk.
	maxDurableClientID = 256
)

// establish reads the CONNECT of a client and handles it [MQTT-3.1]. It returns nil once the session is
// established, and otherwise why it is not. The client then knows, as far as it may.
func (c *connection) establish() error {
	if err := c.handshake(); err != nil {
		return err
	}
	if _, err := c.input.Next(); err != nil {
		return c.readFailed(err)
	}
	c.readTurn.End()
	connect := c.gate.Connect
	c.gate.Connect = nil // it has a password
	if c.server.active != nil {
		return c.refer()
	}
	return c.server.connect(c, connect)
}

const (
	// maxReference bounds a Server Reference: a host name of 253 bytes with a port is shorter.
	maxReference = 300
	// lingerTime is how long a client has to read the answer and to close the connection, and
	// lingerBytes how much it may send meanwhile. Closing a socket with unread data would
	// discard the answer.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// refer tells the client of a server that stands by which one is active.
func (c *connection) refer() error {
	active := c.server.active()
	if len(active) > maxReference || !utf8.ValidString(active) || strings.ContainsFunc(active, unicode.IsControl) {
		active = "" // it cannot be a Server Reference
	}
	c.server.log(lineReferred, "remote", c.remote, "active", active)
	why := refusal(mqtt.UseAnotherServer, "this server stands by, and another one is active")
	_ = c.send(c.gate.AppendRefused(nil, why, active)) // the connection ends either way
	if half, ok := c.socket.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		_ = c.socket.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, c.socket, lingerBytes)
	}
	return why
}

// encryptedSocket is below TLS. TLS also writes of its own accord, in the goroutine that reads: its
// handshake, and the answer to KeyUpdate. Such a write has a deadline of its own, because the present one
// is of the latest packet, which may have left long ago.
type encryptedSocket struct {
	unauthenticated.Socket
	conn *connection
}

func (e *encryptedSocket) Write(p []byte) (int, error) {
	if e.conn.writing.TryLock() { // else a packet is being written, and its deadline is set
		_ = e.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on a closed connection, as the write will
		e.conn.writing.Unlock()
	}
	return e.Socket.Write(p)
}

// handshake does the TLS handshake, if there is TLS. If it fails, the connection ends.
func (c *connection) handshake() error {
	if c.encrypted == nil {
		return nil
	}
	err := c.encrypted.Handshake(c.socket.(*tls.Conn), c.pendingAuth)
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		c.server.countClosed(c, RefusedSlow)
	}
	return c.readFailed(err)
}

// connect does the steps of a CONNECT in the order of the standard [MQTT-3.1.4]: checks, take-over, session,
// CONNACK. The client id is locked from the check that it is free until the session is established.
func (s *Server) connect(conn *connection, asked *wire.Connect) error {
	conn.identity.Client = cmp.Or(asked.ClientID, rand.Text()) // [MQTT-3.1.3-6]
	if err := s.authenticate(conn, asked); err != nil {
		return err
	}
	// Not earlier: a client that has not authenticated must not make others wait for a client id.
	if err := s.lockClientID(conn); err != nil {
		return err
	}
	if conn.isClosed() {
		return net.ErrClosed // so that it takes no session over
	}
	refused := s.reserveID(conn)
	if refused == nil && asked.Will != nil {
		refused = s.admitWill(conn, asked.Will)
	}
	if refused != nil {
		conn.unlockID() // before the answer, which may have to wait for the client
		return s.refuseConnect(conn, RefusedRules, refused, refused.Reason)
	}
	announced := s.announce(conn, asked)
	// Before anything is taken from a client that has the id. A session from before makes it no larger.
	if _, ok := conn.gate.AppendAccepted(nil, false, announced); !ok { // [MQTT-3.1.2-24]
		return s.refuseConnect(conn, RefusedRules, nil, "the client takes no packet of the size of a CONNACK")
	}
	if old := s.connectionOf(conn.identity.Client); old != nil {
		s.takeOver(old, conn)
	}
	present := s.enter(conn, asked.CleanStart)
	connack, _ := conn.gate.AppendAccepted(nil, present, announced)
	if err := conn.send(connack); err != nil {
		return err
	}
	conn.extendDeadline()
	conn.unlockID() // from now on the next connection with the client id finds this one
	conn.client.session.Attach(pubsub.Receiver{
		Wake:              conn.outbox.wake,
		ReceiveMaximum:    asked.ReceiveMaximum,
		MaximumPacketSize: conn.gate.Maximum,
	})
	return nil
}

// announce returns what CONNACK says about the server [MQTT-3.2.2.3].
func (s *Server) announce(conn *connection, asked *wire.Connect) *packets.Properties {
	qos, none, longest := byte(1), byte(0), uint32(maxSessionExpiry)
	announced := &packets.Properties{
		MaximumQOS:         &qos,
		MaximumPacketSize:  &s.options.MaxPacketSize,
		RetainAvailable:    &none,
		SharedSubAvailable: &none,
		SubIDAvailable:     &none,
	}
	if asked.ClientID == "" {
		announced.AssignedClientID = conn.identity.Client
	}
	seconds := min(cmp.Or(asked.KeepAlive, defaultKeepAlive), maxKeepAlive)
	conn.silenceAllowed = time.Duration(seconds) * time.Second * 3 / 2
	if seconds != asked.KeepAlive {
		announced.ServerKeepAlive = &seconds // [MQTT-3.1.2-21]
	}
	if window := uint16(max(s.options.Store.DedupWindow, 0)); window > 0 {
		announced.ReceiveMaximum = &window // the store recognizes as many redeliveries
	}
	if conn.gate.SessionExpiry > longest {
		announced.SessionExpiryInterval = &longest
	}
	return announced
}

// refuseConnect sends CONNACK with the reason to a client that is not admitted, counts and logs that, and
// returns the reason. The connection ends. A client that takes no CONNACK gets none.
func (s *Server) refuseConnect(conn *connection, why RefusalReason, answer *mqtt.Refusal, reason string) error {
	s.refused(why, "client", logs.Name(conn.identity.Client), "remote", conn.remote,
		"user", logs.Name(conn.identity.User), "reason", logs.Text(reason))
	if answer == nil {
		return net.ErrClosed
	}
	if connack := conn.gate.AppendRefused(nil, answer, ""); len(connack) > 0 {
		_ = conn.send(connack) // the connection ends either way
	}
	return answer
}

// authenticate sets the user of a client. If the client is not admitted, it sends CONNACK with the reason and
// returns an error. It may wait for checks of other clients, and holds nothing that another client could wait
// for.
func (s *Server) authenticate(conn *connection, asked *wire.Connect) error {
	credentials := s.credentialsOf(conn, asked)
	if conn.identity.User = credentials.User; s.options.Authenticator != nil {
		err := s.check(conn.pendingAuth, credentials)
		why, answer := RefusedSlow, refusal(mqtt.ServerBusy, "too many clients connect: try again later")
		switch {
		case err == nil:
		case err == unauthenticated.ErrTooMany:
			return err // the connection is closed, and the listener counts it
		case err == semaphore.ErrFull:
			why = RefusedBusy
		case err != unauthenticated.ErrSlow:
			why, answer = RefusedCredentials, refusal(mqtt.BadCredentials, "bad username or password")
		}
		if err != nil {
			return s.refuseConnect(conn, why, answer, err.Error())
		}
	} else if !credentials.Certified {
		conn.identity.User = "" // it is not authenticated
	}
	if !conn.pendingAuth.Done() {
		return net.ErrClosed // dropped for a newer one; the listener counts it
	}
	return nil
}

// check calls the Authenticator, for a few clients at a time: the processors are needed for clients
// that are connected.
func (s *Server) check(pending *unauthenticated.Connection, credentials access.Credentials) error {
	if quick, ok := s.options.Authenticator.(access.QuickAuthenticator); ok {
		if known, err := quick.AuthenticateQuickly(credentials); known {
			return err
		}
	}
	return pending.Check(func() error { return s.options.Authenticator.Authenticate(credentials) })
}

// credentialsOf returns the credentials in a CONNECT, and in the certificate of its connection.
func (s *Server) credentialsOf(conn *connection, asked *wire.Connect) access.Credentials {
	credentials := access.Credentials{Client: conn.identity.Client, User: asked.User, Password: asked.Password}
	if secure, ok := conn.socket.(*tls.Conn); ok {
		// The handshake is over, since CONNECT has arrived.
		state := secure.ConnectionState()
		if len(state.VerifiedChains) > 0 || s.certified && len(state.PeerCertificates) > 0 {
			credentials.User, credentials.Certified = state.PeerCertificates[0].Subject.String(), true
		}
	}
	return credentials
}

// lockClientID locks the client id of a connection, and waits while another connection with the
// same client id is being established. If that takes too long, it sends CONNACK with the reason
// and returns an error.
func (s *Server) lockClientID(conn *connection) (err error) {
	if refused := s.checkID(conn.identity); refused != nil { // before it waits for nothing
		return s.refuseConnect(conn, RefusedRules, refused, refused.Reason)
	}
	ctx, cancel := context.WithTimeoutCause(conn.open, s.clientIDTimeout, errIDTimedOut)
	defer cancel()
	conn.unlock, err = s.lockID(ctx, conn.identity.Client)
	if err == nil || conn.isClosed() {
		return err
	}
	busy := mqtt.Refuse(mqtt.ServerBusy, "%v: try again later", err)
	return s.refuseConnect(conn, RefusedTurn, busy, err.Error())
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
		return refusal(mqtt.InvalidClientID, "no reply can reach this client id on clients/{client id}/…: "+
			"choose one that is not \"statestore\" and has no / + or #")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkUserLocked(identity)
}

func (s *Server) checkUserLocked(identity access.Identity) *mqtt.Refusal {
	if c := s.clients[identity.Client]; c != nil && c.identity.User != identity.User {
		// The session, and the messages in it, belong to the other user.
		return refusal(mqtt.NotAuthorized, "this client id is in use by another user")
	}
	return nil
}

// reserveID reserves a client id unless its client may not connect.
func (s *Server) reserveID(conn *connection) *mqtt.Refusal {
	id := conn.identity.Client
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := s.checkUserLocked(conn.identity); refused != nil {
		return refused
	}
	c := s.clients[id]
	switch {
	case c != nil && c.conn != nil && c.conn.number > conn.number:
		// A CONNECT that waited, for its password or in a server that was frozen. Its client has given up, and
		// must not lose the connection that it has opened since.
		return refusal(mqtt.ServerBusy, "this client has opened another connection since")
	case s.collidesLocked(id):
		return refusal(mqtt.InvalidClientID, "another client, connected or with a session that is kept, has an id of which "+
			"this one is the upper-case hex, or the reverse: both would own the same topics below clients/; "+
			"choose another client id, or end that session")
	case s.options.Journal != nil && len(id) > maxDurableClientID:
		return mqtt.Refuse(mqtt.InvalidClientID, "the client id has %d bytes; a server that keeps its data takes at most %d",
			len(id), maxDurableClientID)
	case c == nil && len(s.clients) >= s.options.MaxClients:
		return mqtt.Refuse(mqtt.QuotaExceeded, "the server has its %d clients, connected or with a session that is kept; "+
			"Options.MaxClients, --max-clients or --max-memory allows more", s.options.MaxClients)
	}
	s.ids[id].reserved = true // so of two clients that would own the same topics and connect at once, one is refused
	return nil
}

// takeOver ends a connection because its client has opened another one, next, and returns when it is over
// [MQTT-3.1.4-3].
//
// A client that leaves and comes back at once has often sent a DISCONNECT that is not read yet.
// Closing the connection at once would lose it, and apply a Will that the client has withdrawn.
func (s *Server) takeOver(old, next *connection) {
	select {
	case <-old.over:
		return
	case <-time.After(takeOverTimeout):
	}
	s.events.TakenOver(old.seen, old.identity.Client, old.identity.User, next.remote, old.remote)
	old.end(endTakenOver)
	<-old.over
}
