package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"

	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/limits"
	"github.com/tenurelock/tenure/statestore"
)

// Options configures a Server. The zero value is a store for this machine alone.
type Options struct {
	// Addr is the TCP address to listen on; port 0 takes a free one. Default
	// DefaultAddr. An address that other machines can reach needs TLS and
	// somebody who checks who connects: an Authenticator, or client
	// certificates that TLS requires.
	Addr string
	// Listener, if not nil, accepts the connections in place of a socket on Addr: a
	// socket that systemd opened, a Unix socket, or connections in memory. The server
	// closes it when it stops, and leaves it open if New fails. It needs TLS and an
	// Authenticator like Addr, unless it is a Unix socket or a TCP socket that only this
	// machine can reach.
	Listener net.Listener
	// AllowInsecure lets Addr be reachable without that. Whoever can reach it
	// can then use the store under any name.
	AllowInsecure bool
	// TLS encrypts connections; nil does not. Where a client shows a
	// certificate that TLS has verified, the subject of that is its user name.
	// Where CipherSuites is nil, TLS 1.2 is limited to suites with ECDHE and AEAD;
	// where it is not, and in what GetConfigForClient returns, the choice is yours.
	// The server uses a copy, so changes after New have no effect.
	TLS *tls.Config

	// Authenticator decides who may connect; nil admits everybody whom TLS
	// does. A server asks an access.QuickAuthenticator first for what it knows at
	// once, and calls Authenticate of any for PasswordChecks clients at a time.
	Authenticator access.Authenticator
	// PasswordChecks is how many calls of Authenticate may run at once. Others wait,
	// in fair turns by remote address; where too many wait, a client is told that the
	// server is busy. Default half of the processors that Go uses, and at least 1.
	PasswordChecks int
	// MaxUnauthenticated bounds how many connections may be open that have not
	// authenticated yet. Each has 5 s for that, from when it was accepted, its TLS
	// handshake included. Where there are more, the oldest without a CONNECT is closed
	// for the new one. Half as many may wait for PasswordChecks. Default 256, or less
	// where the process may have few open files.
	MaxUnauthenticated int
	// MaxUnauthenticatedPerAddress is the same for one remote address: one of IPv4, or
	// 64 bits of IPv6. Default 64; and MaxUnauthenticated for connections from this
	// machine, where a proxy may speak for many.
	MaxUnauthenticatedPerAddress int
	// Authorizer decides who may use which key; default access.AllowKeys. If
	// it is an access.TopicAuthorizer too, it decides about the broker's
	// ordinary topics as well.
	Authorizer access.Authorizer

	// Store limits the store, and makes it strict. The zero value does neither, but for
	// watches: where a limit of watches is 0, a client may have 10,000 (MaxWatches) that
	// take up 4 MiB (MaxWatchBytes), and all clients 256 MiB (MaxAllWatchBytes). A server announces Store.DedupWindow as its Receive Maximum.
	Store statestore.Options
	// Dialect chooses how the server writes replies that differ between the
	// published protocol and what is deployed.
	Dialect statestore.Dialect
	// MaxPacketSize bounds each MQTT packet in bytes, and with it each key and
	// value. Default 1 MiB.
	MaxPacketSize uint32
	// Retain allows retained messages. Without it CONNACK says that there are none, and a
	// client that publishes one is disconnected with that reason.
	Retain bool
	// MaxClients bounds how many clients may be connected or have a session
	// that is kept for them. Default 10,000.
	MaxClients int
	// Limits bounds what clients can make the server hold.
	Limits Limits
	// MaxMemory, in bytes, is what a server should get by with: limits that are not set
	// follow from it, those of Store and MaxClients included. It is no promise, since Go
	// itself and bursts of large packets need memory too: see docs/security.md. 0 leaves
	// each limit at its default, and keys and values without one.
	MaxMemory int64
	// Logger receives what happens; nil keeps silent.
	Logger *slog.Logger
}

const (
	// DefaultAddr is where a server listens if nothing else is said.
	DefaultAddr = "127.0.0.1:1883"

	defaultMaxUnauthenticated           = 256
	defaultMaxUnauthenticatedPerAddress = 64
)

// complete fills in defaults and rejects nonsense.
func (o *Options) complete() error {
	if o.Listener != nil {
		o.Addr = o.Listener.Addr().String()
	}
	if o.Addr == "" {
		o.Addr = DefaultAddr
	}
	if o.MaxPacketSize == 0 {
		o.MaxPacketSize = limits.PacketSize
	}
	if err := o.completeLimits(); err != nil {
		return err
	}
	if err := o.completeAuthentication(); err != nil {
		return err
	}
	if o.Store.DedupWindow > 1<<16-1 {
		return fmt.Errorf("Options.Store.DedupWindow %d is above 65535, the largest Receive Maximum of MQTT", o.Store.DedupWindow)
	}
	if o.Authorizer == nil {
		o.Authorizer = access.AllowKeys
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if !o.AllowInsecure && !o.isLocal() {
		return o.mustBeSecure()
	}
	return nil
}

// completeDoor is about connections that have not authenticated.
func (o *Options) completeAuthentication() error {
	switch {
	case o.PasswordChecks < 0:
		return fmt.Errorf("Options.PasswordChecks %d is negative; 0 means half of the processors", o.PasswordChecks)
	case o.MaxUnauthenticated < 0:
		return fmt.Errorf("Options.MaxUnauthenticated %d is negative; 0 means %d", o.MaxUnauthenticated, defaultMaxUnauthenticated)
	case o.MaxUnauthenticatedPerAddress < 0:
		return fmt.Errorf("Options.MaxUnauthenticatedPerAddress %d is negative; 0 means %d, or no bound of its own for this machine",
			o.MaxUnauthenticatedPerAddress, defaultMaxUnauthenticatedPerAddress)
	}
	if o.PasswordChecks == 0 {
		o.PasswordChecks = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if o.MaxUnauthenticated == 0 {
		o.MaxUnauthenticated = defaultMaxUnauthenticated
	}
	return nil
}

// ErrInsecure is what errors.Is finds in the error of New where other machines could
// reach a server without TLS or without authentication.
var ErrInsecure = errors.New("not secure")

func (o *Options) mustBeSecure() error {
	certified := o.TLS != nil && o.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	switch {
	case o.TLS == nil:
		return fmt.Errorf("%w: other machines can reach %s and there is no TLS", ErrInsecure, o.Addr)
	case o.Authenticator == nil && !certified:
		return fmt.Errorf("%w: other machines can reach %s and nobody checks who connects", ErrInsecure, o.Addr)
	}
	return nil
}

// isLocal reports whether only this machine can reach the server.
func (o *Options) isLocal() bool {
	if o.Listener != nil && o.Listener.Addr().Network() != "tcp" {
		return o.Listener.Addr().Network() == "unix"
	}
	return isLoopback(o.Addr)
}

// isLoopback reports whether only this machine can reach an address. An address
// that cannot be read is left for net.Listen to refuse.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
