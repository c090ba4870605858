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
	// authenticationTimeout bounds the time from accepting a connection to the end of its
	// authentication: TLS handshake, CONNECT, and the comparison of its password.
	authenticationTimeout = 5 * time.Second
	// arrivalGrace is how long a connection has at least to send its CONNECT before one
	// that is newer takes its place. Until then new ones wait to be accepted: a crowd that
	// arrives together would otherwise drive itself out.
	arrivalGrace = 500 * time.Millisecond
)

// door bounds the connections that have not authenticated. Where there are too many, the
// oldest of those that have not sent a CONNECT is dropped for the new one. A connection
// whose password is being compared or waits for that is not dropped: it has done its part,
// and a bound of its own (see Server.checks), which is half of the one here.
type authLimiter struct {
	max, maxPerSource int           // in all, and of one source
	timeout           time.Duration // from accepting to the end of authentication
	freed             chan struct{} // room for one: a visitor left

	mu        sync.Mutex
	total     int
	perSource map[netip.Prefix]int
	droppable list.List // of *visitor, oldest first: those that may be dropped
}

// visitor is a connection that has not authenticated. A nil visitor is none.
type pendingAuth struct {
	limiter *authLimiter
	source  netip.Prefix
	since   time.Time
	drop    func()          // ends the connection
	ctx     context.Context // ends with the connection or with the patience of the door
	cancel  context.CancelFunc

	// Guarded by door.mu.
	element *list.Element // in waiting; nil: it may not be dropped
	gone    bool
}

func newAuthLimiter(most, mostOf int) *authLimiter {
	return &authLimiter{max: most, maxPerSource: mostOf, timeout: authenticationTimeout, freed: make(chan struct{}, 1), perSource: make(map[netip.Prefix]int)}
}

// crowdCure is what to do where it is not an attack.
const unauthenticatedHint = "raise Options.MaxUnauthenticated, --max-unauthenticated, or MaxUnauthenticatedPerAddress, if so many clients connect at once"

// errDoor says why a connection is not let in, or not any more.
var errUnauthenticated = errors.New("too many connections have not authenticated")

// arrive admits a connection that was accepted now. It returns the visitor that must be
// dropped for it, if any. There is none to drop where all others wait for their passwords to be
// compared: then the new one is refused.
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

// bound returns how many visitors a source may have. Without an option there is no bound of
// its own for this machine: a proxy on it speaks for many.
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
	for place := d.droppable.Front(); place != nil; place = place.Next() {
		if v := place.Value.(*pendingAuth); fits(v) {
			return v
		}
	}
	return nil
}

// admit and remove are called with mu locked.
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

// wait returns how long no connection should be accepted: until the oldest has had its
// grace. It is 0 while there is room.
func (d *authLimiter) wait() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total < d.max || d.droppable.Len() == 0 {
		return 0
	}
	return max(0, arrivalGrace-time.Since(d.droppable.Front().Value.(*pendingAuth).since))
}

// hold keeps a visitor from being dropped, since its password is about to be compared. It
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

// leave is called when a connection has authenticated, and when it ends. It reports false
// if the connection was dropped or has ended.
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

// end ends the waits of a connection that is closed.
func (v *pendingAuth) cancelWait() {
	if v != nil {
		v.cancel()
	}
}

// sourceOf returns the network that counts as one source of connections: an address of
// IPv4, or 64 bits of IPv6, which is what one site has at least. All that has no such
// address is one source.
func sourceOf(address net.Addr) netip.Prefix {
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
