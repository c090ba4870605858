package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/semaphore"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// authenticate sets the user of a client. If the client is not admitted, it sends CONNACK with the reason and
// returns an error. It may wait for checks of other clients, and holds nothing that another client could wait
// for.
func (s *Server) authenticate(conn *connection, asked *wire.Connect) error {
	credentials := s.credentialsOf(conn, asked)
	if s.options.Authenticator == nil && !credentials.Certified {
		credentials.User = "" // it is not authenticated
	}
	if s.options.Authenticator != nil {
		why, err := s.check(conn.pendingAuth, credentials)
		if why == RefusedUnauthenticated {
			return err // the connection is closed, and the listener counts it
		}
		if err != nil {
			answer := refusal(mqtt.BadCredentials, "bad username or password")
			if why != RefusedCredentials {
				answer = refusal(mqtt.ServerBusy, "too many clients connect: try again later")
			}
			return s.refuse(conn, why, answer, "user", logs.Name(credentials.User), "error", logs.Error(err))
		}
	}
	if !conn.pendingAuth.Done() {
		return net.ErrClosed // dropped for a newer one; the listener counts it
	}
	conn.authenticated = true
	conn.identity.User = credentials.User
	return nil
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
