package server

import (
	"crypto/tls"
	"fmt"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
)

// admit decides whether a client may connect, and notes who it is.
func (s *Server) admit(cl *mqtt.Client, conn *connection, pk packets.Packet) *packets.Code {
	credentials := credentialsOf(cl, conn, pk)
	if s.options.Authenticator != nil {
		if err := s.options.Authenticator.Authenticate(credentials); err != nil {
			s.logger.Warn("refused a connection", "client", cl.ID, "user", credentials.User, "error", err)
			return &packets.ErrBadUsernameOrPassword
		}
	} else if !credentials.Certified {
		credentials.User = "" // nobody has checked it
	}
	who := access.Identity{Client: cl.ID, User: credentials.User}
	existing, known := s.broker.Clients.Get(cl.ID)
	if known && userOf(existing) != who.User {
		// Its session, and what is published for it, are another's.
		return refusal(packets.ErrNotAuthorized, "this client id is in use by another user")
	}
	if s.collides(cl.ID) {
		return refusal(packets.ErrClientIdentifierNotValid, "another client, connected or with a session that is kept, has an id of which this one is the upper-case hex, or the reverse: "+
			"both would own the same topics below clients/; choose another client id, or end that session")
	}
	if !known && s.broker.Clients.Len() >= s.options.MaxClients {
		return refusal(packets.ErrQuotaExceeded, fmt.Sprintf("the server has its %d clients, connected or with a session that is kept", s.options.MaxClients))
	}
	if refused := s.admitWill(who, cl, conn, pk); refused != nil {
		return refused
	}
	conn.identity = who
	return nil
}

// admitWill decides about the Will in a CONNECT, if there is one.
func (s *Server) admitWill(who access.Identity, cl *mqtt.Client, conn *connection, pk packets.Packet) *packets.Code {
	if pk.Connect.WillFlag && pk.Connect.WillTopic == protocol.InvokeTopic {
		return s.keepWill(who, cl, conn, pk)
	}
	if pk.Connect.WillFlag && !s.mayLeaveWill(who, pk.Connect.WillTopic) {
		// By the time the Will is due, there is no client that could be told.
		return refusal(packets.ErrNotAuthorized, fmt.Sprintf("a Will may not be published to %q, which belongs to the state store or to another client", pk.Connect.WillTopic))
	}
	if pk.Connect.WillFlag && pk.Connect.WillRetain && isClientTopic(pk.Connect.WillTopic) {
		return refusal(packets.ErrNotAuthorized, notRetained)
	}
	return nil
}

func refusal(code packets.Code, reason string) *packets.Code {
	return &packets.Code{Code: code.Code, Reason: reason}
}

// connackCode returns a refusal as the client's version of MQTT has it. The broker
// translates only codes whose reason is its own, and would send the others as they are to
// clients that do not know them.
func connackCode(cl *mqtt.Client, refused packets.Code) packets.Code {
	if cl.Properties.ProtocolVersion >= 5 {
		return refused
	}
	switch refused.Code {
	case packets.ErrClientIdentifierNotValid.Code:
		return packets.Err3ClientIdentifierNotValid
	case packets.ErrNotAuthorized.Code, packets.ErrBadUsernameOrPassword.Code:
		return packets.Err3NotAuthorized
	default:
		return packets.Err3ServerUnavailable
	}
}

// credentialsOf collects what a connection says and proves of itself.
func credentialsOf(cl *mqtt.Client, conn *connection, pk packets.Packet) access.Credentials {
	credentials := access.Credentials{
		Client:   cl.ID,
		User:     string(pk.Connect.Username),
		Password: pk.Connect.Password,
	}
	if secure, ok := conn.Conn.(*tls.Conn); ok {
		// The handshake is over: CONNECT came through it.
		if chains := secure.ConnectionState().VerifiedChains; len(chains) > 0 {
			credentials.User, credentials.Certified = chains[0][0].Subject.String(), true
		}
	}
	return credentials
}

// userOf returns the user of a client that is connected or has a session.
func userOf(cl *mqtt.Client) string {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		return conn.identity.User
	}
	return ""
}

// identityOf returns who a client is. One without a connection of ours is a part of
// the broker, which has no topics of its own.
func identityOf(cl *mqtt.Client) access.Identity {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		return conn.identity
	}
	return access.Identity{Client: cl.ID}
}
