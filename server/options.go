package server

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"

	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/defaults"
	"github.com/tenurelock/tenure/statestore"
)

// Options configures a Server. The zero value is a store for this machine alone.
type Options struct {
	// Addr is the TCP address to listen on; port 0 takes a free one. Default DefaultAddr. An
	// address that other machines can reach needs TLS and authentication: an Authenticator,
	// or client certificates that TLS requires.
	Addr string
	// Listener, if not nil, accepts the connections in place of a socket on Addr: a
	// socket that systemd opened, a Unix socket, or connections in memory. The server
	// closes it when it stops, and leaves it open if New fails. It needs TLS and an
	// Authenticator like Addr, unless it is a Unix socket or a TCP socket that only this
	// machine can reach.
	Listener net.Listener
	// AllowInsecure allows Addr without TLS and authentication. Then everything that can reach
	// it can use the store, under any client id.
	AllowInsecure bool
	// TLS encrypts connections; nil does not. If a client has a certificate that TLS has
	// verified, the subject of the certificate is its user name. If CipherSuites is nil, TLS
	// 1.2 is limited to suites with ECDHE and AEAD; if CurvePreferences is nil, key exchange to
	// X25519, with or without ML-KEM, and P-256. A client may show 5 certificates, no two of
	// authorities of the same name. To bound that, the server verifies certificates itself, and
	// resumes no session of a client with one. With GetConfigForClient, VerifyPeerCertificate or VerifyConnection
	// package tls verifies, without these bounds; a configuration that the first returns is used as it is. Half of
	// the processors that Go uses compute handshakes, in fair turns by remote address. The server uses a copy, so
	// changes after New have no effect.
	TLS *tls.Config

	// Authenticator decides which clients may connect; nil admits every client that TLS admits.
	// If it is an access.QuickAuthenticator, the server calls AuthenticateQuickly first. Half of the processors
	// that Go uses may call Authenticate at once, and at least one. Other clients wait, in
	// fair turns by remote address. If too many wait, CONNACK says that the server is busy.
	Authenticator access.Authenticator
	// MaxUnauthenticated bounds how many open connections have not authenticated yet. Each has
	// 5 s for that, from when it was accepted, including the TLS handshake. If there are more, the
	// oldest without a CONNECT is closed for the new one. Half as many may wait for
	// Authenticate. Default 256, or less if the process may have few open files.
	MaxUnauthenticated int
	// MaxUnauthenticatedPerAddress is the same for one remote address: an IPv4 address, or 64
	// bits of IPv6. Default 64, and MaxUnauthenticated for connections from this machine, where
	// a proxy may connect for many clients.
	MaxUnauthenticatedPerAddress int
	// Authorizer decides which client may use which key. Default access.AllowKeys. If it is an
	// access.TopicAuthorizer too, it also decides about ordinary topics.
	Authorizer access.Authorizer

	// Store limits the store, and makes it strict. The zero value does neither, except for
	// watches: a limit of watches that is 0 gets a default, 10,000 for each client (MaxWatches)
	// that take up 4 MiB (MaxWatchBytes), and 256 MiB for all clients (MaxAllWatchBytes). The
	// server announces Store.DedupWindow as its Receive Maximum.
	Store statestore.Options
	// Journal keeps the data of the store, so that it survives a restart: keys with their
	// versions and tokens, fences, and the replies to the requests that a client may deliver
	// again. A reply or a notification leaves when what it shows is in the journal. nil keeps
	// everything in memory, and a restart begins empty.
	//
	// The journal has the client id once for each reply that it remembers. So a client with an id
	// of more than 256 bytes is refused.
	//
	// The data keeps its identity: Store.Identity is only for data without one. Store.HoldOff
	// counts only for a start without data or from a backup. The program that opened the journal
	// closes it, after Serve has returned, and calls no other method of statestore.Journal. It may
	// make backups meanwhile, if the journal can.
	Journal statestore.Journal
	// MaxPacketSize bounds each MQTT packet in bytes, and with it each key and
	// value. At least 1,024: less has no space for the packets that every client needs.
	// Default 1 MiB.
	MaxPacketSize uint32
	// MaxClients bounds how many clients may be connected or have a session that is kept while
	// they are away. Default 10,000.
	MaxClients int
	// MaxMemory, in bytes, is how much memory the server should use. The bounds of docs/security.md are
	// derived from it, and where they are 0 the limits in Store, and MaxClients. It is not a guarantee, since Go itself
	// and bursts of large packets need memory too. If it is 0, each bound has its default, and keys and values have
	// no limit.
	MaxMemory int64
	// Logger receives what happens; nil keeps silent.
	Logger *slog.Logger

	limits limits // derived
}

// limits bounds in bytes what clients can make a server hold, besides what Options.Store bounds. Of what they
// share, one may have at most as much as is left for all others, and a small part in any case.
type limits struct {
	// Outgoing bounds the replies and notifications that wait to be written to one connection. A
	// client for which a notification does not fit is disconnected. While half of it is taken, the
	// server reads nothing more from the client. AllOutgoing bounds the same for all connections together.
	Outgoing, AllOutgoing int64
	// Arriving bounds the packets of all connections that have begun to arrive, beyond 20 KiB
	// that each has in any case. Users share it; a client whose packet does not fit is disconnected.
	Arriving int64
	// Messages bounds those that wait for all clients: a message that does not fit is dropped, and counted in
	// Stats.DroppedMessages.
	Messages int64
	// Subscriptions bounds what the subscriptions of all clients take up.
	Subscriptions int64
}

// DefaultAddr is the default of Options.Addr.
const DefaultAddr = "127.0.0.1:1883"

// OptionError says which field of [Options] makes no sense, and what would do.
type OptionError = optionerror.Error

// Check returns the error that New would return for options that make no sense, such as
// ErrInsecure, and nil for others. A program that opens a server later, when it becomes the active
// one of several, can refuse them at once.
func (o Options) Check() error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// complete sets defaults, and returns an error for options that make no sense.
func (o *Options) complete() error {
	if o.Listener != nil {
		o.Addr = o.Listener.Addr().String()
	}
	o.Addr = cmp.Or(o.Addr, DefaultAddr)
	if err := o.completeLimits(); err != nil {
		return err
	}
	if o.Authorizer == nil {
		o.Authorizer = access.AllowKeys
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	switch {
	case o.AllowInsecure || o.isLocal():
	case o.TLS == nil:
		return fmt.Errorf("%w: other machines can reach %s and there is no TLS", ErrInsecure, o.Addr)
	case o.Authenticator == nil && o.TLS.ClientAuth != tls.RequireAndVerifyClientCert:
		return fmt.Errorf("%w: other machines can reach %s and clients are not authenticated", ErrInsecure, o.Addr)
	}
	return nil
}

// ErrInsecure is what errors.Is finds in the error of New if other machines could reach the
// server without TLS or without authentication.
var ErrInsecure = errors.New("not secure")

// isLocal reports whether only this machine can reach the server. It returns true for an Addr that it cannot
// parse, which net.Listen will refuse, and false for such an address of a Listener, which may be the public end
// of a tunnel.
func (o *Options) isLocal() bool {
	network := "tcp"
	if o.Listener != nil {
		network = o.Listener.Addr().Network()
	}
	host, _, err := net.SplitHostPort(o.Addr)
	if err != nil || network != "tcp" {
		return o.Listener == nil || network == "unix"
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

const (
	// leastMemory is the smallest Options.MaxMemory: less has no space even for a few packets.
	leastMemory = 32 << 20
	// leastPacket is the smallest Options.MaxPacketSize.
	leastPacket = 1024
	// clientMemory is about how much memory the buffers and stacks of a connected client take.
	clientMemory = 48 << 10
	// dedupEntryMemory is how much an entry of the store's deduplication window takes, see
	// package statestore.
	dedupEntryMemory = 128
)

// completeLimits sets the limits that are 0, from MaxMemory or to their defaults.
//
// Of MaxMemory, a quarter is for keys and values. An eighth each is for what waits for
// connections, for what waits in sessions, for watches, and for clients with their
// deduplication windows. A sixteenth each is for subscriptions and for packets that arrive. The rest is
// for overhead, and for what each client is assured even if others have reached a limit.
func (o *Options) completeLimits() (wrong error) {
	refuse := func(field string, value any, problem string) {
		if wrong == nil {
			wrong = &OptionError{Package: "server", Field: field, Value: value, Problem: problem}
		}
	}
	check := func(field string, value int64) {
		if value < 0 {
			refuse(field, value, "is negative; 0 means the default")
		}
	}
	check("MaxMemory", o.MaxMemory)
	check("MaxClients", int64(o.MaxClients))
	check("MaxUnauthenticated", int64(o.MaxUnauthenticated))
	check("MaxUnauthenticatedPerAddress", int64(o.MaxUnauthenticatedPerAddress))
	if o.MaxMemory > 0 && o.MaxMemory < leastMemory {
		refuse("MaxMemory", o.MaxMemory, fmt.Sprintf(
			"is below %d (%d MiB), the least with which a server can work; 0 means no limit",
			int64(leastMemory), leastMemory>>20))
	}
	if o.MaxPacketSize = cmp.Or(o.MaxPacketSize, defaults.PacketSize); o.MaxPacketSize < leastPacket {
		refuse("MaxPacketSize", o.MaxPacketSize, fmt.Sprintf("is below %d; 0 means %d", leastPacket, defaults.PacketSize))
	}
	if o.Store.DedupWindow > math.MaxUint16 {
		refuse("Store.DedupWindow", o.Store.DedupWindow, "is above 65535, the largest Receive Maximum of MQTT")
	}
	if wrong != nil {
		return wrong
	}
	share := func(parts, standard int64) int64 {
		if o.MaxMemory == 0 {
			return standard
		}
		return min(o.MaxMemory/parts, standard)
	}
	set(&o.MaxUnauthenticated, unauthenticated.DefaultMax)
	set(&o.Store.DedupWindow, statestore.DefaultDedupWindow)
	window := int64(max(o.Store.DedupWindow, 0))
	set(&o.MaxClients, int(max(1, share(8*(clientMemory+window*dedupEntryMemory), defaults.Clients))))
	set(&o.Store.MaxBytes, o.MaxMemory/4)
	set(&o.Store.MaxKeys, int(min(o.MaxMemory/4/1024, math.MaxInt32))) // a key costs some hundred bytes besides its own
	defaults.FillWatches(&o.Store, share(8, defaults.AllWatchBytes))
	l := &o.limits
	set(&l.AllOutgoing, share(8, 256<<20))
	set(&l.Outgoing, min(8<<20, l.AllOutgoing))
	set(&l.Arriving, max(share(16, 256<<20), 4*int64(o.MaxPacketSize)))
	set(&l.Messages, share(8, 256<<20))
	set(&l.Subscriptions, share(16, 256<<20))
	return nil
}

// set sets an option that is 0.
func set[T int | int64](option *T, standard T) { *option = cmp.Or(*option, standard) }
