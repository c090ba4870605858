package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/envelope"
)

// clientIDTimeout bounds how long a connection waits for an earlier one of its client.
const clientIDTimeout = 5 * time.Second

var (
	errNewerWaits   = errors.New("a newer connection of this client waits in place of this one")
	errOtherUsersID = errors.New("another user's connection with this client id is being established")
	errIDTimedOut   = errors.New("an earlier connection of this client was not established, or not ended, in time")
)

// clientIDs has a lock for each client id, so that connections of one client are established
// one after the other. A connection locks its client id, for which it may wait, and then claims it,
// which fails if the server knows another client that would own the same topics. Lock and claim
// last until the client has entered Server.clients, or the connection has ended.
//
// A lock excludes no other client id, even one that would own the same topics: otherwise a client
// that connects again and again could make another one wait.
type clientIDs struct {
	timeout time.Duration // of a connection that waits

	mu     sync.Mutex
	locked map[string]*lockedID // by client id
}

// lockedID is a client id that a connection has locked. It is guarded by clientIDs.mu.
type lockedID struct {
	user    string // of the connection, and of the one that waits for the lock
	anyUser bool   // the server has locked it, and none waits: a connection of any user may
	claimed bool
	next    chan bool // receives once, true if the waiting connection has the lock; nil: none waits
}

func newClientIDs() *clientIDs {
	return &clientIDs{timeout: clientIDTimeout, locked: make(map[string]*lockedID)}
}

// lock waits until no other connection has the client id, and returns the function that unlocks
// it. It returns an error if ctx ends before, and for all but the latest of the connections that
// wait: when a link fails and comes back, only the latest connection has a client at its other
// end, and any other would be taken over at once. So at most one connection of a client waits,
// however many it opens. A connection of another user gets an error at once.
func (n *clientIDs) lock(ctx context.Context, client, user string) (unlock func(), err error) {
	unlock = func() { n.unlock(client) }
	granted, err := n.queue(client, user)
	if err != nil {
		return nil, err
	}
	if granted == nil {
		return unlock, nil
	}
	select {
	case locked := <-granted:
		if !locked {
			return nil, errNewerWaits
		}
		return unlock, nil
	case <-ctx.Done():
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if id := n.locked[client]; id != nil && id.next == granted {
		id.next = nil
	} else if locked := <-granted; locked { // at the same time; the value is there
		n.pass(client)
	}
	return nil, errIDTimedOut
}

// queue returns nil if the caller has the lock now, and otherwise a channel that receives true
// when it has, or false if a newer connection waits in its place.
func (n *clientIDs) queue(client, user string) (granted chan bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.locked[client]
	switch {
	case id == nil:
		n.locked[client] = &lockedID{user: user}
		return nil, nil
	case id.user != user && !id.anyUser:
		return nil, errOtherUsersID
	case id.next != nil:
		id.next <- false
	}
	id.user, id.anyUser = user, false
	id.next = make(chan bool, 1) // so that sending its one value never blocks
	return id.next, nil
}

// tryLock is lock for the server itself, which must not wait. It reports false if the client id is locked. A
// connection of any user may wait for the server.
func (n *clientIDs) tryLock(client string) (unlock func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.locked[client] != nil {
		return nil, false
	}
	n.locked[client] = &lockedID{anyUser: true}
	return func() { n.unlock(client) }, true
}

func (n *clientIDs) unlock(client string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pass(client)
}

// pass hands the lock on a client id to the connection that waits for it, if there is one. It is
// called with mu locked.
func (n *clientIDs) pass(client string) {
	id := n.locked[client]
	if id.next == nil {
		delete(n.locked, client)
		return
	}
	id.next <- true
	id.next, id.claimed = nil, false
}

// claim reports whether no other client that would own the same topics has claimed its id or
// has a session, and if so claims the id, which the caller has locked. So of two such clients
// that connect at once, one is refused. hasSession must not wait.
func (n *clientIDs) claim(client string, hasSession func(client string) bool) bool {
	rivals := rivals(client)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inUse(rivals, hasSession) {
		return false
	}
	n.locked[client].claimed = true
	return true
}

// collides reports whether a claim would fail.
func (n *clientIDs) collides(client string, hasSession func(client string) bool) bool {
	rivals := rivals(client)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inUse(rivals, hasSession)
}

// inUse reports whether one of some clients has claimed its id or has a session. It is called with
// mu locked; a client has entered Server.clients before its claim ends.
func (n *clientIDs) inUse(clients []string, hasSession func(client string) bool) bool {
	for _, client := range clients {
		if name := n.locked[client]; name != nil && name.claimed || hasSession(client) {
			return true
		}
	}
	return false
}

// rivals returns the client ids that would own a level below clients/ that this client owns
// too: the id of one is the upper-case hex of the id of the other.
func rivals(client string) []string {
	rivals := []string{envelope.HexLevel(client)}
	if name, isHex := envelope.FromHexLevel(client); isHex {
		rivals = append(rivals, name)
	}
	return rivals
}
