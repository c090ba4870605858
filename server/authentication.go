package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/semaphore"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// authenticate returns the identity of a client. If the client is not admitted, it sends CONNACK
// with the reason and returns an error. It may wait for checks of other clients, and holds
// nothing that another client could wait for.
func (s *Server) authenticate(cl *mochi.Client, conn *connection, pk packets.Packet) (identity access.Identity, err error) {
	credentials := s.credentialsOf(cl, conn, pk)
	if s.options.Authenticator == nil && !credentials.Certified {
		credentials.User = "" // it is not authenticated
	}
	if s.options.Authenticator != nil {
		why, err := s.check(conn.pendingAuth, credentials)
		if why == RefusedUnauthenticated {
			return identity, err // the connection is closed, and the listener counts it
		}
		if err != nil {
			code := packets.ErrBadUsernameOrPassword
			if why != RefusedCredentials {
				code = *refusal(packets.ErrServerBusy, "too many clients connect: try again later")
			}
			return identity, s.refuse(cl, why, code, "user", logs.Name(credentials.User), "error", logs.Error(err))
		}
	}
	if !conn.pendingAuth.Done() {
		return identity, net.ErrClosed // dropped for a newer one; the listener counts it
	}
	conn.authenticated = true
	return access.Identity{Client: cl.ID, User: credentials.User}, nil
}

// check calls the Authenticator, for a few clients at a time: the processors are needed for clients
// that are connected.
func (s *Server) check(pending *unauthenticated.Connection, credentials access.Credentials) (RefusalReason, error) {
	if quick, ok := s.options.Authenticator.(access.QuickAuthenticator); ok {
		if known, err := quick.AuthenticateQuickly(credentials); known {
			return RefusedCredentials, err
		}
	}
	if !pending.Protect() {
		return RefusedUnauthenticated, unauthenticated.ErrTooMany
	}
	release, err := s.checks.Acquire(pending.Context(), pending.Source())
	switch {
	case errors.Is(err, semaphore.ErrFull):
		return RefusedBusy, err
	case err != nil:
		return RefusedSlow, err
	}
	err = func() error {
		defer release() // even after a panic, or all clients would lose the place
		return s.options.Authenticator.Authenticate(credentials)
	}()
	// The clock decides too: on a busy machine the context ends later than its deadline.
	if deadline, _ := pending.Context().Deadline(); err == nil && (pending.Context().Err() != nil || !time.Now().Before(deadline)) {
		return RefusedSlow, context.DeadlineExceeded
	}
	return RefusedCredentials, err
}

// credentialsOf returns the credentials in a CONNECT, and in the certificate of its connection.
func (s *Server) credentialsOf(cl *mochi.Client, conn *connection, pk packets.Packet) access.Credentials {
	credentials := access.Credentials{
		Client:   cl.ID,
		User:     string(pk.Connect.Username),
		Password: pk.Connect.Password,
	}
	if secure, ok := conn.Conn.(*tls.Conn); ok {
		// The handshake is over, since CONNECT has arrived.
		state := secure.ConnectionState()
		if len(state.VerifiedChains) > 0 || s.certified && len(state.PeerCertificates) > 0 {
			credentials.User, credentials.Certified = state.PeerCertificates[0].Subject.String(), true
		}
	}
	return credentials
}

// userOf returns the user of a client that is connected or has a session.
func userOf(cl *mochi.Client) string {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		return conn.identity.User
	}
	return ""
}
