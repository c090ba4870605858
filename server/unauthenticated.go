package server

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
	// authenticationTimeout bounds the time from accepting a connection until its client has
	// authenticated: TLS handshake, CONNECT, and the check of its password.
	authenticationTimeout = 5 * time.Second
	// arrivalGrace is how long each connection may take to send its CONNECT before it is dropped for
	// a newer one, which waits. Otherwise many clients that connect at once would drop each other.
	arrivalGrace = 500 * time.Millisecond
)

// authLimiter bounds the connections that have not authenticated. If there are too many, the
// oldest of those without a CONNECT is dropped for the new one. Those with a password that is being
// checked, or waits for that, are not dropped: Server.checks bounds them at half of the bound here.
type authLimiter struct {
	max, maxPerSource int           // of all connections, and of one source
	timeout           time.Duration // from accepting until the client has authenticated
	freed             chan struct{} // has an item after a connection was removed

	mu        sync.Mutex
	total     int
	perSource map[netip.Prefix]int
	droppable list.List // of *pendingAuth, oldest first: those that may be dropped
}

// pendingAuth is a connection that has not authenticated. Its methods accept nil, which stands
// for no connection.
type pendingAuth struct {
	limiter *authLimiter
	source  netip.Prefix
	since   time.Time
	drop    func()          // ends the connection
	ctx     context.Context // ends with the connection or after authLimiter.timeout
	cancel  context.CancelFunc

	// Guarded by authLimiter.mu.
	element *list.Element // in droppable; nil: it may not be dropped
	gone    bool
}

func newAuthLimiter(most, mostOf int) *authLimiter {
	return &authLimiter{max: most, maxPerSource: mostOf, timeout: authenticationTimeout, freed: make(chan struct{}, 1), perSource: make(map[netip.Prefix]int)}
}

// unauthenticatedHint is what an operator can do unless it is an attack.
const unauthenticatedHint = "raise Options.MaxUnauthenticated, --max-unauthenticated, or MaxUnauthenticatedPerAddress, if so many clients connect at once"

// errUnauthenticated is why a connection is refused or dropped.
var errUnauthenticated = errors.New("too many connections have not authenticated")

// add adds a connection that was accepted now. It returns the oldest one if that must be
// dropped for it. If all others wait for a check of their passwords, none can be dropped: then it
// returns errUnauthenticated.
func (d *authLimiter) add(source netip.Prefix, drop func()) (v, oldest *pendingAuth, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.perSource[source] >= d.limitOf(source):
		oldest = d.oldestLocked(func(v *pendingAuth) bool { return v.source == source })
	case d.total >= d.max:
		oldest = d.oldestLocked(func(*pendingAuth) bool { return true })
	default:
		return d.addLocked(source, drop), nil, nil
	}
	if oldest == nil {
		return nil, nil, errUnauthenticated
	}
	d.removeLocked(oldest)
	return d.addLocked(source, drop), oldest, nil
}

// limitOf returns how many of the connections may come from a source. By default this machine may
// have all of them, since a proxy on it connects for many clients.
func (d *authLimiter) limitOf(source netip.Prefix) int {
	switch {
	case d.maxPerSource > 0:
		return d.maxPerSource
	case source.Addr().IsLoopback():
		return d.max
	}
	return min(d.max, defaultMaxUnauthenticatedPerAddress)
}

func (d *authLimiter) oldestLocked(fits func(*pendingAuth) bool) *pendingAuth {
	for e := d.droppable.Front(); e != nil; e = e.Next() {
		if v := e.Value.(*pendingAuth); fits(v) {
			return v
		}
	}
	return nil
}

func (d *authLimiter) addLocked(source netip.Prefix, drop func()) *pendingAuth {
	v := &pendingAuth{limiter: d, source: source, since: time.Now(), drop: drop}
	v.ctx, v.cancel = context.WithDeadline(context.Background(), v.since.Add(d.timeout))
	v.element = d.droppable.PushBack(v)
	d.total++
	d.perSource[source]++
	return v
}

func (d *authLimiter) removeLocked(v *pendingAuth) {
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

// wait returns for how long no connection should be accepted: until the oldest has had its
// arrivalGrace. It is 0 while there is room.
func (d *authLimiter) wait() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total < d.max || d.droppable.Len() == 0 {
		return 0
	}
	return max(0, arrivalGrace-time.Since(d.droppable.Front().Value.(*pendingAuth).since))
}

// protect keeps a connection from being dropped, since its password is about to be checked. It
// reports false if it was dropped before.
func (v *pendingAuth) protect() bool {
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

// done is called when a connection has authenticated, and when it ends. It reports false if the
// connection was dropped or has ended before.
func (v *pendingAuth) done() bool {
	if v == nil {
		return false
	}
	v.limiter.mu.Lock()
	defer v.limiter.mu.Unlock()
	gone := v.gone
	v.limiter.removeLocked(v)
	return !gone
}

// cancelWait ends the wait for a check, because the connection is closed.
func (v *pendingAuth) cancelWait() {
	if v != nil {
		v.cancel()
	}
}

// sourceOf returns the network that counts as one source of connections: an IPv4 address, or 64
// bits of IPv6, which is the least that one site has. A Unix socket is this machine. All other
// addresses are one source.
func sourceOf(address net.Addr) netip.Prefix {
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
