package server

import (
	"context"
	"fmt"
	"net"
	"strings"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// lockClientID locks the client id of a connection, and waits while another connection with the
// same client id is being established. If that takes too long, it sends CONNACK with the reason
// and returns an error.
func (s *Server) lockClientID(identity access.Identity, cl *mochi.Client, conn *connection) error {
	if refused := s.checkID(identity); refused != nil { // before it waits for nothing
		return s.refuse(cl, RefusedRules, *refused, "user", logs.Name(identity.User), "reason", logs.Text(refused.Reason))
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.clientIDs.timeout)
	defer cancel()
	conn.waitForID(cancel)
	defer conn.cancelWait.Store(nil) // the context would last as long as the connection
	release, err := s.clientIDs.lock(ctx, cl.ID, identity.User)
	switch {
	case err == nil:
		conn.unlock = release
		return nil
	case conn.closed.Load():
		return net.ErrClosed
	}
	return s.refuse(cl, RefusedTurn, *refusal(packets.ErrServerBusy, err.Error()+": try again later"), "user", logs.Name(identity.User), "error", logs.Error(err))
}

// checkID refuses a client id whose plain response topic (docs/protocol.md §1.2) would belong to the store or
// to another client, and one that another user has.
func (s *Server) checkID(identity access.Identity) *packets.Code {
	if topic := envelope.ClientTopics + identity.Client; envelope.IsBelow(topic, envelope.StoreTopics) || strings.ContainsAny(identity.Client, "/+#") {
		return refusal(packets.ErrClientIdentifierNotValid, "no reply can reach this client id on clients/{client id}/…: choose one that is not \"statestore\" and has no / + or #")
	}
	if existing, known := s.mochi.Clients.Get(identity.Client); known && userOf(existing) != identity.User {
		// The session, and the messages in it, belong to the other user.
		return refusal(packets.ErrNotAuthorized, "this client id is in use by another user")
	}
	return nil
}

// admit returns why a client may not connect, or nil. It stores the identity and the Will with the
// connection, which has locked the client id.
func (s *Server) admit(identity access.Identity, cl *mochi.Client, conn *connection, pk packets.Packet) *packets.Code {
	if refused := s.checkID(identity); refused != nil {
		return refused
	}
	if present := s.connectionOf(cl.ID); present != nil && present.number > conn.number {
		// A CONNECT that waited, for its password or in a server that was frozen. Its client has given up, and
		// must not lose the connection that it has opened since.
		return refusal(packets.ErrServerBusy, "this client has opened another connection since")
	}
	if !s.clientIDs.claim(cl.ID, s.hasSession) {
		return refusal(packets.ErrClientIdentifierNotValid, "another client, connected or with a session that is kept, has an id of which this one is the upper-case hex, or the reverse: "+
			"both would own the same topics below clients/; choose another client id, or end that session")
	}
	if s.options.Journal != nil && len(cl.ID) > maxDurableClientID {
		return refusal(packets.ErrClientIdentifierNotValid, fmt.Sprintf("the client id has %d bytes; a server that keeps its data takes at most %d", len(cl.ID), maxDurableClientID))
	}
	if !s.hasSession(cl.ID) && s.mochi.Clients.Len() >= s.options.MaxClients {
		return refusal(packets.ErrQuotaExceeded, fmt.Sprintf("the server has its %d clients, connected or with a session that is kept; Options.MaxClients, --max-clients or --max-memory allows more", s.options.MaxClients))
	}
	if refused := s.admitWill(identity, cl, conn, pk); refused != nil {
		return refused
	}
	conn.identity = identity
	return nil
}

// maxDurableClientID bounds a client id in bytes, if there is a journal: that has it once for each
// reply that it remembers, so long ids would fill a disk.
const maxDurableClientID = 256

// admitWill returns why the Will in a CONNECT is refused, or nil, and stores the Will with the
// connection.
func (s *Server) admitWill(identity access.Identity, cl *mochi.Client, conn *connection, pk packets.Packet) *packets.Code {
	topic, retain := pk.Connect.WillTopic, pk.Connect.WillRetain
	switch {
	case !pk.Connect.WillFlag:
		return nil
	case topic == protocol.InvokeTopic:
		return s.setWillRequest(identity, cl, conn, pk)
	case !s.mayLeaveWill(identity, topic): // when the Will is due, the client can no longer be told
		return refusal(packets.ErrNotAuthorized, fmt.Sprintf("a Will may not be published to %q, which belongs to the state store of this server or to another client", topic))
	case retain && !s.options.Retain:
		return refusal(packets.ErrRetainNotSupported, noneRetained)
	case retain && envelope.IsClientTopic(topic):
		return refusal(packets.ErrNotAuthorized, notRetained)
	}
	s.setOrdinaryWill(identity, cl, conn, pk)
	return nil
}

func refusal(code packets.Code, reason string) *packets.Code {
	return &packets.Code{Code: code.Code, Reason: reason}
}

// refuse sends CONNACK with the code to a client that is not admitted, counts that, and returns
// the code. mochi ends the connection.
func (s *Server) refuse(cl *mochi.Client, why RefusalReason, code packets.Code, attributes ...any) error {
	s.countRefused(why)
	s.observeRefusal(cl, why)
	s.refusals.Log(append([]any{"client", logs.Name(cl.ID), "remote", cl.Net.Remote}, attributes...)...)
	answer := code
	if cl.Properties.ProtocolVersion < 5 {
		answer = oldRefusal(code)
	}
	_ = s.mochi.SendConnack(cl, answer, false, nil)
	return code
}

// oldRefusal returns the nearest of the five codes of CONNACK before MQTT 5.
func oldRefusal(code packets.Code) packets.Code {
	switch code.Code {
	case packets.ErrServerBusy.Code, packets.ErrQuotaExceeded.Code:
		return packets.Err3ServerUnavailable
	case packets.ErrClientIdentifierNotValid.Code:
		return packets.Err3ClientIdentifierNotValid
	}
	return packets.Err3NotAuthorized
}
