package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/envelope"
)

// nameTimeout bounds how long a connection waits for an earlier one of its client.
const clientIDTimeout = 5 * time.Second

var (
	errNewerWaits   = errors.New("a newer connection of this client waits in place of this one")
	errOtherUsersID = errors.New("another user's connection with this client id is being established")
	errIDTimedOut   = errors.New("an earlier connection of this client was not established, or not ended, in time")
)

// names lets connections of one client id be established one after the other. A connection
// takes its client id first, which may have to wait. Then it claims the id, which does not
// wait, and fails if another client is known that would own the same topics. Both last until
// the connection is entered as a client, or has ended.
//
// Client ids that would own the same topics do not wait for each other: else a client that
// connects again and again could keep a different one waiting.
type clientIDs struct {
	timeout time.Duration // of a connection that waits

	mu     sync.Mutex
	locked map[string]*lockedID // by client id
}

// takenName is a client id that a connection has taken. It is guarded by names.mu.
type lockedID struct {
	user    string // of the connection, and of the one that waits
	claimed bool
	next    chan bool // gets one value: whether its turn has come; nil: no connection waits
}

func newClientIDs() *clientIDs {
	return &clientIDs{timeout: clientIDTimeout, locked: make(map[string]*lockedID)}
}

// take waits until no other connection has the client id, and returns the function that
// gives the id back. It returns an error if ctx ends before, and for all but the latest of
// the connections that wait: where a link fails and comes back, only the latest has a client
// at its other end, and any other would be taken over at once. So a client has one connection
// that waits, however many it opens. The connection of another user does not wait, and takes
// no place.
func (n *clientIDs) lock(ctx context.Context, client, user string) (release func(), err error) {
	release = func() { n.unlock(client) }
	turn, err := n.queue(client, user)
	if err != nil {
		return nil, err
	}
	if turn == nil {
		return release, nil
	}
	select {
	case came := <-turn:
		if !came {
			return nil, errNewerWaits
		}
		return release, nil
	case <-ctx.Done():
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if name := n.locked[client]; name != nil && name.next == turn {
		name.next = nil
	} else if came := <-turn; came { // at the same time; the value is there
		n.pass(client)
	}
	return nil, errIDTimedOut
}

// queue returns nil if the client id is the caller's now, and otherwise where to wait for it.
func (n *clientIDs) queue(client, user string) (turn chan bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := n.locked[client]
	switch {
	case name == nil:
		n.locked[client] = &lockedID{user: user}
		return nil, nil
	case name.user != user:
		return nil, errOtherUsersID
	case name.next != nil:
		name.next <- false
	}
	name.next = make(chan bool, 1) // the one value never waits to be received
	return name.next, nil
}

// tryTake is take for a caller that must not wait. It reports false if the client id is
// taken.
func (n *clientIDs) tryLock(client, user string) (release func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.locked[client] != nil {
		return nil, false
	}
	n.locked[client] = &lockedID{user: user}
	return func() { n.unlock(client) }, true
}

func (n *clientIDs) unlock(client string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pass(client)
}

// pass gives a client id to the connection that waits for it, if one does. It is called with
// mu locked.
func (n *clientIDs) pass(client string) {
	name := n.locked[client]
	if name.next == nil {
		delete(n.locked, client)
		return
	}
	name.next <- true
	name.next, name.claimed = nil, false
}

// claim notes that the client of an id that the caller has taken will be entered, unless
// that collides with another client that is claimed or entered. So of two clients that
// connect at once and would own the same topics, one is refused. entered must not wait.
func (n *clientIDs) claim(client string, entered func(client string) bool) bool {
	rivals := rivals(client)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inUse(rivals, entered) {
		return false
	}
	n.locked[client].claimed = true
	return true
}

// collides reports what a claim would find.
func (n *clientIDs) collides(client string, entered func(client string) bool) bool {
	rivals := rivals(client)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inUse(rivals, entered)
}

// inUse reports whether one of some clients is claimed or entered. It is called with mu
// locked: a client is entered before its claim ends.
func (n *clientIDs) inUse(clients []string, entered func(client string) bool) bool {
	for _, client := range clients {
		if name := n.locked[client]; name != nil && name.claimed || entered(client) {
			return true
		}
	}
	return false
}

// rivals returns the client ids that would own a level below clients/ which is this
// client's too: the id of one is the upper-case hex of the id of the other.
func rivals(client string) []string {
	rivals := []string{envelope.HexLevel(client)}
	if name, isHex := envelope.FromHexLevel(client); isHex {
		rivals = append(rivals, name)
	}
	return rivals
}
