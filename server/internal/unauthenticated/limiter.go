// Package unauthenticated bounds the connections of clients that have not authenticated: in
// number, for all and for each source, and in time.
package unauthenticated

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// DefaultMax and DefaultMaxPerAddress are how many connections there may be, of all clients
	// and of one remote address.
	DefaultMax           = 256
	DefaultMaxPerAddress = 64
	// DefaultTimeout bounds the time from accepting a connection until its client has
	// authenticated: TLS handshake, CONNECT, and the check of its password.
	DefaultTimeout = 5 * time.Second
	// Grace is how long each connection may take to send its CONNECT before it is dropped for
	// a newer one, which waits. Otherwise many clients that connect at once would drop each other.
	Grace = 500 * time.Millisecond
)

// Limiter bounds the connections that have not authenticated. It is safe for concurrent use. If there are too many, the
// oldest of those without a CONNECT is dropped for the new one. Those with a password that is being
// checked, or waits for that, are not dropped: the server bounds them at half of the bound here.
type Limiter struct {
	// Timeout is how long a connection may take from when it was accepted until its client has
	// authenticated. It is DefaultTimeout, unless a test changes it before the first Add.
	Timeout time.Duration

	max, maxPerSource int           // of all connections, and of one source
	freed             chan struct{} // has an item after a connection was removed

	mu        sync.Mutex
	total     int
	perSource map[netip.Prefix]int
	droppable list.List // of *Connection, oldest first: those that may be dropped
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

	// Guarded by Limiter.mu.
	element *list.Element // in droppable; nil: it may not be dropped
	gone    bool
}

// New returns a limiter of most connections, of which mostOf may come from one source; 0 means
// DefaultMaxPerAddress, and most for this machine. sockets is how many connections there may be in
// all, or 0 for any number: half of them is the bound if most is larger, because connections that
// have not authenticated must not take all descriptors.
func New(most, mostOf, sockets int) *Limiter {
	if sockets > 0 {
		most = min(most, max(1, sockets/2))
	}
	return &Limiter{Timeout: DefaultTimeout, max: most, maxPerSource: mostOf, freed: make(chan struct{}, 1), perSource: make(map[netip.Prefix]int)}
}

// Max returns the bound for all connections.
func (d *Limiter) Max() int { return d.max }

// Len returns how many connections there are.
func (d *Limiter) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.total
}

// Freed returns a channel that receives after a connection was removed. Only one goroutine may
// use it.
func (d *Limiter) Freed() <-chan struct{} { return d.freed }

// Hint is what an operator can do unless it is an attack.
const Hint = "raise Options.MaxUnauthenticated, --max-unauthenticated, or MaxUnauthenticatedPerAddress, if so many clients connect at once"

// ErrTooMany is why a connection is refused or dropped.
var ErrTooMany = errors.New("too many connections have not authenticated")

// Add adds a connection that was accepted now. It returns the oldest one if that must be
// dropped for it. If all others wait for a check of their passwords, none can be dropped: then it
// returns ErrTooMany.
func (d *Limiter) Add(source netip.Prefix, drop func()) (v, oldest *Connection, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.perSource[source] >= d.LimitOf(source):
		oldest = d.oldestLocked(func(v *Connection) bool { return v.source == source })
	case d.total >= d.max:
		oldest = d.oldestLocked(func(*Connection) bool { return true })
	default:
		return d.addLocked(source, drop), nil, nil
	}
	if oldest == nil {
		return nil, nil, ErrTooMany
	}
	d.removeLocked(oldest)
	return d.addLocked(source, drop), oldest, nil
}

// LimitOf returns how many of the connections may come from a source. By default this machine may
// have all of them, since a proxy on it connects for many clients.
func (d *Limiter) LimitOf(source netip.Prefix) int {
	switch {
	case d.maxPerSource > 0:
		return d.maxPerSource
	case source.Addr().IsLoopback():
		return d.max
	}
	return min(d.max, DefaultMaxPerAddress)
}

func (d *Limiter) oldestLocked(fits func(*Connection) bool) *Connection {
	for e := d.droppable.Front(); e != nil; e = e.Next() {
		if v := e.Value.(*Connection); fits(v) {
			return v
		}
	}
	return nil
}

func (d *Limiter) addLocked(source netip.Prefix, drop func()) *Connection {
	v := &Connection{limiter: d, source: source, since: time.Now(), drop: drop}
	v.ctx, v.cancel = context.WithDeadline(context.Background(), v.since.Add(d.Timeout))
	v.element = d.droppable.PushBack(v)
	d.total++
	d.perSource[source]++
	return v
}

func (d *Limiter) removeLocked(v *Connection) {
	if v.gone {
		return
	}
	v.gone = true
	if v.element != nil {
		d.droppable.Remove(v.element)
		v.element = nil
	}
	d.total--
	if d.perSource[v.source]--; d.perSource[v.source] == 0 {
		delete(d.perSource, v.source)
	}
	v.cancel()
	select {
	case d.freed <- struct{}{}:
	default:
	}
}

// Pause returns for how long no connection should be accepted: until the oldest has had its
// Grace. It is 0 while there is room.
func (d *Limiter) Pause() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total < d.max || d.droppable.Len() == 0 {
		return 0
	}
	return max(0, Grace-time.Since(d.droppable.Front().Value.(*Connection).since))
}

// Drop ends the connection, which Add has returned as the oldest.
func (v *Connection) Drop() { v.drop() }

// Deadline returns when the time of the connection is over.
func (v *Connection) Deadline() time.Time { return v.since.Add(v.limiter.Timeout) }

// Context returns a context that ends with the connection, and at its deadline.
func (v *Connection) Context() context.Context { return v.ctx }

// Source returns the source of the connection.
func (v *Connection) Source() netip.Prefix { return v.source }

// Protect keeps a connection from being dropped, since its password is about to be checked. It
// reports false if it was dropped before.
func (v *Connection) Protect() bool {
	v.limiter.mu.Lock()
	defer v.limiter.mu.Unlock()
	if v.gone {
		return false
	}
	if v.element != nil {
		v.limiter.droppable.Remove(v.element)
		v.element = nil
	}
	return true
}

// Done is called when a connection has authenticated, and when it ends. It reports false if the
// connection was dropped or has ended before.
func (v *Connection) Done() bool {
	if v == nil {
		return false
	}
	v.limiter.mu.Lock()
	defer v.limiter.mu.Unlock()
	gone := v.gone
	v.limiter.removeLocked(v)
	return !gone
}

// CancelWait ends the wait for a check, because the connection is closed.
func (v *Connection) CancelWait() {
	if v != nil {
		v.cancel()
	}
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
