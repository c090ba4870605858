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
type door struct {
	most, mostOf int           // in all, and of one source
	patience     time.Duration // from accepting to the end of authentication
	left         chan struct{} // room for one: a visitor left

	mu      sync.Mutex
	total   int
	of      map[netip.Prefix]int
	waiting list.List // of *visitor, oldest first: those that may be dropped
}

// visitor is a connection that has not authenticated. A nil visitor is none.
type visitor struct {
	door   *door
	source netip.Prefix
	since  time.Time
	drop   func()          // ends the connection
	ctx    context.Context // ends with the connection or with the patience of the door
	cancel context.CancelFunc

	// Guarded by door.mu.
	place *list.Element // in waiting; nil: it may not be dropped
	gone  bool
}

func newDoor(most, mostOf int) *door {
	return &door{most: most, mostOf: mostOf, patience: authenticationTimeout, left: make(chan struct{}, 1), of: make(map[netip.Prefix]int)}
}

// crowdCure is what to do where it is not an attack.
const crowdCure = "raise Options.MaxUnauthenticated, --max-unauthenticated, or MaxUnauthenticatedPerAddress, if so many clients connect at once"

// errDoor says why a connection is not let in, or not any more.
var errDoor = errors.New("too many connections have not authenticated")

// arrive admits a connection that was accepted now. It returns the visitor that must be
// dropped for it, if any. There is none to drop where all others wait for their passwords to be
// compared: then the new one is refused.
func (d *door) arrive(source netip.Prefix, drop func()) (v, oldest *visitor, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.of[source] >= d.bound(source):
		oldest = d.oldest(func(v *visitor) bool { return v.source == source })
	case d.total >= d.most:
		oldest = d.oldest(func(*visitor) bool { return true })
	default:
		return d.admit(source, drop), nil, nil
	}
	if oldest == nil {
		return nil, nil, errDoor
	}
	d.remove(oldest)
	return d.admit(source, drop), oldest, nil
}

// bound returns how many visitors a source may have. Without an option there is no bound of
// its own for this machine: a proxy on it speaks for many.
func (d *door) bound(source netip.Prefix) int {
	switch {
	case d.mostOf > 0:
		return d.mostOf
	case source.Addr().IsLoopback():
		return d.most
	}
	return min(d.most, defaultMaxUnauthenticatedPerAddress)
}

func (d *door) oldest(fits func(*visitor) bool) *visitor {
	for place := d.waiting.Front(); place != nil; place = place.Next() {
		if v := place.Value.(*visitor); fits(v) {
			return v
		}
	}
	return nil
}

// admit and remove are called with mu locked.
func (d *door) admit(source netip.Prefix, drop func()) *visitor {
	v := &visitor{door: d, source: source, since: time.Now(), drop: drop}
	v.ctx, v.cancel = context.WithDeadline(context.Background(), v.since.Add(d.patience))
	v.place = d.waiting.PushBack(v)
	d.total++
	d.of[source]++
	return v
}

func (d *door) remove(v *visitor) {
	if v.gone {
		return
	}
	v.gone = true
	if v.place != nil {
		d.waiting.Remove(v.place)
		v.place = nil
	}
	d.total--
	if d.of[v.source]--; d.of[v.source] == 0 {
		delete(d.of, v.source)
	}
	v.cancel()
	select {
	case d.left <- struct{}{}:
	default:
	}
}

// wait returns how long no connection should be accepted: until the oldest has had its
// grace. It is 0 while there is room.
func (d *door) wait() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total < d.most || d.waiting.Len() == 0 {
		return 0
	}
	return max(0, arrivalGrace-time.Since(d.waiting.Front().Value.(*visitor).since))
}

// hold keeps a visitor from being dropped, since its password is about to be compared. It
// reports false if it was dropped before.
func (v *visitor) hold() bool {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if v.gone {
		return false
	}
	if v.place != nil {
		v.door.waiting.Remove(v.place)
		v.place = nil
	}
	return true
}

// leave is called when a connection has authenticated, and when it ends. It reports false
// if the connection was dropped or has ended.
func (v *visitor) leave() bool {
	if v == nil {
		return false
	}
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	gone := v.gone
	v.door.remove(v)
	return !gone
}

// end ends the waits of a connection that is closed.
func (v *visitor) end() {
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
