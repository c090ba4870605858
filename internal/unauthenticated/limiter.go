// Package unauthenticated accepts connections, and bounds the clients that have not authenticated:
// how many there are, in all and from each source, how long they stay, and how many TLS handshakes
// are computed at once.
package unauthenticated

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/semaphore"
	"github.com/tenurelock/tenure/internal/wake"
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

// Limiter bounds the connections that have not authenticated, and what they can have computed. If there are too
// many, the oldest of those without a CONNECT is dropped for the new one. A connection whose password is being
// checked, or waits for its check, is not dropped: these are at most half of the bound, and of the bound for one
// source. A Limiter is safe for concurrent use.
type Limiter struct {
	// Timeout is how long a connection may take from when it was accepted until its client has
	// authenticated. It is DefaultTimeout, unless a test changes it before the first Add.
	Timeout time.Duration

	max, maxPerSource int           // of all connections, and of one source
	freed             chan struct{} // has an item after a connection was removed
	handshakes        *semaphore.Fair[netip.Prefix]
	checks            *semaphore.Fair[netip.Prefix]

	mu   sync.Mutex
	open []*Connection // the oldest first
}

// Connection is a connection that has not authenticated.
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
//
// Half of the processors compute handshakes, and half of them check passwords: the rest is for clients that are
// connected. A password takes much longer than a handshake, and a client whose password is known must not wait
// behind that.
func New(most, mostPerSource, sockets int) *Limiter {
	if sockets > 0 {
		most = min(most, max(1, sockets/2))
	}
	l := &Limiter{Timeout: DefaultTimeout, max: most, maxPerSource: mostPerSource, freed: make(chan struct{}, 1)}
	half := runtime.GOMAXPROCS(0) / 2
	// A connection waits once at a time, so the bound for connections bounds those that wait.
	l.handshakes = semaphore.New(half, math.MaxInt, func(netip.Prefix) int { return math.MaxInt })
	l.checks = semaphore.New(half, max(1, most/2), func(source netip.Prefix) int { return max(1, l.limitOf(source)/2) })
	return l
}

// Len returns how many connections there are.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Waiting returns how many TLS handshakes and checks of passwords wait for their turns.
func (l *Limiter) Waiting() (handshakes, checks int) {
	return l.handshakes.Waiting(), l.checks.Waiting()
}

// Hint is what an operator can do unless it is an attack.
const Hint = "raise Options.MaxUnauthenticated, --max-unauthenticated, or MaxUnauthenticatedPerAddress, if so many " +
	"clients connect at once"

var (
	// ErrTooMany is why a connection is refused or dropped.
	ErrTooMany = errors.New("too many connections have not authenticated")
	// ErrSlow is the error of Check if the time of a connection is over.
	ErrSlow = errors.New("the password was not checked in time")
)

// Add adds a connection that was accepted now, which ends with ctx at the latest. It drops the oldest one, if it
// must, by the function that this was added with. If all others wait for a check of their passwords, none can
// be dropped: then it returns ErrTooMany.
func (l *Limiter) Add(ctx context.Context, conn net.Conn, drop func()) (*Connection, error) {
	added := &Connection{limiter: l, source: SourceOf(RemoteOf(conn)), since: time.Now(), drop: drop}
	added.ctx, added.cancel = context.WithDeadline(ctx, added.Deadline())
	oldest, err := l.add(added)
	if oldest != nil {
		oldest.drop()
	}
	return added, err
}

func (l *Limiter) add(added *Connection) (oldest *Connection, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ofSource := 0
	for _, c := range l.open {
		if c.source == added.source {
			ofSource++
		}
	}
	if many := ofSource >= l.limitOf(added.source); many || len(l.open) >= l.max {
		i := slices.IndexFunc(l.open, func(c *Connection) bool { return !c.protected && (!many || c.source == added.source) })
		if i < 0 {
			added.cancel()
			return nil, ErrTooMany
		}
		oldest = l.open[i]
		l.removeLocked(oldest)
	}
	l.open = append(l.open, added)
	return oldest, nil
}

// limitOf returns how many of the connections may come from a source. By default this machine may
// have all of them, since a proxy on it connects for many clients.
func (l *Limiter) limitOf(source netip.Prefix) int {
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
	c.cancel()
	i := slices.Index(l.open, c)
	if i < 0 {
		return false
	}
	l.open = slices.Delete(l.open, i, i+1)
	wake.Up(l.freed)
	return true
}

// pause returns for how long no connection should be accepted: until the oldest has had its
// grace. It is 0 while there is space.
func (l *Limiter) pause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.open, func(c *Connection) bool { return !c.protected })
	if i < 0 || len(l.open) < l.max {
		return 0
	}
	return max(0, grace-time.Since(l.open[i].since))
}

// Deadline returns when the time of the connection is over.
func (c *Connection) Deadline() time.Time { return c.since.Add(c.limiter.Timeout) }

// Context returns a context that ends with the connection, and at its deadline.
func (c *Connection) Context() context.Context { return c.ctx }

// Check calls check, which checks a password, in a turn: fair by source, and a few at a time. The connection is not
// dropped from now on. The error is semaphore.ErrFull if too many wait, ErrTooMany, ErrSlow, or what check returns.
func (c *Connection) Check(check func() error) error {
	c.limiter.mu.Lock()
	c.protected = true
	present := slices.Contains(c.limiter.open, c)
	c.limiter.mu.Unlock()
	if !present {
		return ErrTooMany
	}
	release, err := c.limiter.checks.Acquire(c.ctx, c.source)
	switch {
	case errors.Is(err, semaphore.ErrFull):
		return err
	case err != nil:
		return ErrSlow
	}
	err = func() error {
		defer release() // even after a panic, or all clients would lose the place
		return check()
	}()
	// The clock decides too: on a busy machine the context ends later than its deadline.
	if err == nil && (c.ctx.Err() != nil || !time.Now().Before(c.Deadline())) {
		return ErrSlow
	}
	return err
}

// Done is called when a connection has authenticated, and when it ends. It reports false if the
// connection was dropped or has ended before.
func (c *Connection) Done() bool {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	return c.limiter.removeLocked(c)
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
