// Package unauthenticated accepts connections, and bounds the clients that have not authenticated:
// how many there are, in all and from each source, how long they stay, and how many TLS handshakes
// are computed at once.
package unauthenticated

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/semaphore"
)

const (
	// DefaultMax and defaultMaxPerAddress are how many connections there may be, of all clients
	// and of one remote address.
	DefaultMax           = 256
	defaultMaxPerAddress = 64
	// DefaultTimeout bounds the time from accepting a connection until its client has
	// authenticated: TLS handshake, CONNECT, and the check of its password.
	DefaultTimeout = 5 * time.Second
	// grace is how long each connection may take to send its CONNECT before it is dropped for
	// a newer one, which waits. Otherwise many clients that connect at once would drop each other.
	grace = 500 * time.Millisecond
)

// Limiter bounds the connections that have not authenticated. If there are too many, the oldest of
// those without a CONNECT is dropped for the new one. A connection whose password is being checked,
// or waits for its check, is not dropped: the server bounds them at half of the bound here. A Limiter
// is safe for concurrent use.
type Limiter struct {
	// Timeout is how long a connection may take from when it was accepted until its client has
	// authenticated. It is DefaultTimeout, unless a test changes it before the first Add.
	Timeout time.Duration

	max, maxPerSource int           // of all connections, and of one source
	freed             chan struct{} // has an item after a connection was removed
	handshakes        *semaphore.Fair[netip.Prefix]

	mu   sync.Mutex
	open []*Connection // the oldest first
}

// Connection is a connection that has not authenticated. Done and CancelWait accept nil, which
// stands for no connection.
type Connection struct {
	limiter *Limiter
	source  netip.Prefix
	since   time.Time
	drop    func()          // ends the connection
	ctx     context.Context // ends with the connection or after Timeout
	cancel  context.CancelFunc

	protected bool // it may not be dropped; guarded by Limiter.mu
}

// New returns a limiter of most connections, of which mostPerSource may come from one source; 0
// means defaultMaxPerAddress, and most for this machine. sockets is how many connections there may
// be in all, or 0 for any number: half of them is the bound if most is larger, because connections
// that have not authenticated must not take all descriptors.
func New(most, mostPerSource, sockets int) *Limiter {
	if sockets > 0 {
		most = min(most, max(1, sockets/2))
	}
	return &Limiter{Timeout: DefaultTimeout, max: most, maxPerSource: mostPerSource, freed: make(chan struct{}, 1), handshakes: newHandshakes()}
}

// Max returns the bound for all connections.
func (l *Limiter) Max() int { return l.max }

// Handshaking returns how many TLS handshakes wait for their turns.
func (l *Limiter) Handshaking() int { return l.handshakes.Waiting() }

// Len returns how many connections there are.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Hint is what an operator can do unless it is an attack.
const Hint = "raise Options.MaxUnauthenticated, --max-unauthenticated, or MaxUnauthenticatedPerAddress, if so many clients connect at once"

// ErrTooMany is why a connection is refused or dropped.
var ErrTooMany = errors.New("too many connections have not authenticated")

// Add adds a connection that was accepted now. It returns the oldest one if that must be
// dropped for it. If all others wait for a check of their passwords, none can be dropped: then it
// returns ErrTooMany.
func (l *Limiter) Add(source netip.Prefix, drop func()) (added, oldest *Connection, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ofSource := 0
	for _, c := range l.open {
		if c.source == source {
			ofSource++
		}
	}
	if many := ofSource >= l.LimitOf(source); many || len(l.open) >= l.max {
		i := slices.IndexFunc(l.open, func(c *Connection) bool { return !c.protected && (!many || c.source == source) })
		if i < 0 {
			return nil, nil, ErrTooMany
		}
		oldest = l.open[i]
		l.removeLocked(oldest)
	}
	added = &Connection{limiter: l, source: source, since: time.Now(), drop: drop}
	added.ctx, added.cancel = context.WithDeadline(context.Background(), added.since.Add(l.Timeout))
	l.open = append(l.open, added)
	return added, oldest, nil
}

// LimitOf returns how many of the connections may come from a source. By default this machine may
// have all of them, since a proxy on it connects for many clients.
func (l *Limiter) LimitOf(source netip.Prefix) int {
	switch {
	case l.maxPerSource > 0:
		return l.maxPerSource
	case source.Addr().IsLoopback():
		return l.max
	}
	return min(l.max, defaultMaxPerAddress)
}

// removeLocked removes a connection, and reports false if it is gone already.
func (l *Limiter) removeLocked(c *Connection) bool {
	i := slices.Index(l.open, c)
	if i < 0 {
		return false
	}
	l.open = slices.Delete(l.open, i, i+1)
	c.cancel()
	select {
	case l.freed <- struct{}{}:
	default:
	}
	return true
}

// pause returns for how long no connection should be accepted: until the oldest has had its
// grace. It is 0 while there is room.
func (l *Limiter) pause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.open, func(c *Connection) bool { return !c.protected })
	if i < 0 || len(l.open) < l.max {
		return 0
	}
	return max(0, grace-time.Since(l.open[i].since))
}

// Drop ends the connection, which Add has returned as the oldest.
func (c *Connection) Drop() { c.drop() }

// Deadline returns when the time of the connection is over.
func (c *Connection) Deadline() time.Time { return c.since.Add(c.limiter.Timeout) }

// Context returns a context that ends with the connection, and at its deadline.
func (c *Connection) Context() context.Context { return c.ctx }

// Source returns the source of the connection.
func (c *Connection) Source() netip.Prefix { return c.source }

// Protect keeps a connection from being dropped, since its password is about to be checked. It
// reports false if it was dropped before.
func (c *Connection) Protect() bool {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.protected = true
	return slices.Contains(c.limiter.open, c)
}

// Done is called when a connection has authenticated, and when it ends. It reports false if the
// connection was dropped or has ended before.
func (c *Connection) Done() bool {
	if c == nil {
		return false
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	return c.limiter.removeLocked(c)
}

// CancelWait ends the wait for a check, because the connection is closed.
func (c *Connection) CancelWait() {
	if c != nil {
		c.cancel()
	}
}

// RemoteOf returns the remote address of a connection, or one without a name if it has none.
func RemoteOf(conn net.Conn) net.Addr {
	if remote := conn.RemoteAddr(); remote != nil {
		return remote
	}
	return new(net.IPAddr)
}

// SourceOf returns the network that counts as one source of connections: an IPv4 address, or 64
// bits of IPv6, which is the least that one site has. A Unix socket is this machine. All other
// addresses are one source.
func SourceOf(address net.Addr) netip.Prefix {
	if _, ok := address.(*net.UnixAddr); ok {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() || ip.IsLoopback() {
		bits = ip.BitLen()
	}
	prefix, _ := ip.Prefix(bits) // the zero Prefix for an address that is none
	return prefix
}
