package attach

import (
	"container/list"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// settledAfter is how long after its first request a client must send another one to count as
	// settled.
	settledAfter = time.Minute
	// idleAfter is how long a settled client must have been silent before another may take its
	// place.
	idleAfter = 10 * time.Minute
)

// clientLRU remembers the clients that have sent requests. The broker does not say which of them
// are gone or real: one publisher can claim any number of client ids. So a client is new at first,
// and settled if it sends another request after settledAfter. One client too many replaces the new
// client that has been silent for longest: a flood of new ids replaces only itself. At least a
// quarter of the places are for new clients; when the others are full, a client becomes settled
// only in place of one that is idle.
//
// It is safe for concurrent use. It calls the engine with its lock held, so the engine must never
// call it.
type clientLRU struct {
	engine *engine.Engine
	limit  int
	gone   func(client, reason string) // called with the lock held; must not block
	now    func() time.Time
	count  atomic.Uint64 // numbers KEYNOTIFYs, notifications, and what ends watches, in order

	mu      sync.Mutex
	fresh   *list.List               // the new ones; the latest is in front
	settled *list.List               // likewise
	clients map[string]*list.Element // of *clientEntry, in fresh or settled
}

type clientEntry struct {
	client  string
	watched uint64    // the number of its last KEYNOTIFY; 0: none
	since   uint64    // no watch of it is older, by clientLRU.count
	first   time.Time // of its first request
	last    time.Time // of its last request
	settled bool      // which list it is in
}

func newClientLRU(engine *engine.Engine, limit int, gone func(client, reason string)) *clientLRU {
	return &clientLRU{engine: engine, limit: limit, gone: gone, now: time.Now, fresh: list.New(), settled: list.New(), clients: make(map[string]*list.Element)}
}

// restore remembers clients with requests in a journal. Each may deliver its last requests again, so
// those for which there is room count as settled.
func (c *clientLRU) restore(clients []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, client := range clients {
		switch {
		case len(c.clients) == c.limit:
			c.engine.EndSession(client)
		case c.settled.Len() < c.mostSettled():
			c.clients[client] = c.settled.PushFront(&clientEntry{client: client, first: now, last: now, settled: true})
		default:
			c.clients[client] = c.fresh.PushFront(&clientEntry{client: client, first: now, last: now})
		}
	}
}

// submit applies a command that its client has just sent, like engine.Submit. If there are too many
// clients, it removes another one.
func (c *clientLRU) submit(command statestore.Command, done func(statestore.Reply)) (reply statestore.Reply, now bool) {
	c.heard(command, func() bool {
		reply, now = c.engine.Submit(command, done)
		return true
	})
	return reply, now
}

// trySubmit is submit for a command whose reply may leave at once, like engine.TrySubmit. It reports
// false for any other, which changes nothing.
func (c *clientLRU) trySubmit(command statestore.Command, done func(statestore.Reply)) (reply statestore.Reply, ok bool) {
	c.heard(command, func() bool {
		reply, ok = c.engine.TrySubmit(command, done)
		return ok
	})
	return reply, ok
}

// heard notes that the client of a command is there, and calls apply, which reports whether it has applied the
// command.
func (c *clientLRU) heard(command statestore.Command, apply func() bool) {
	c.mu.Lock()
	entry := c.heardLocked(command.Client)
	if command.Verb != statestore.VerbKeyNotify {
		c.mu.Unlock()
		apply()
		return
	}
	defer c.mu.Unlock()
	if apply() {
		entry.watched = c.count.Add(1)
	}
}

// isSettled reports whether a client has sent requests for settledAfter or longer.
func (c *clientLRU) isSettled(client string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.clients[client]
	return element != nil && element.Value.(*clientEntry).settled
}

func (c *clientLRU) heardLocked(client string) *clientEntry {
	now := c.now()
	element := c.clients[client]
	if element == nil {
		client = strings.Clone(client) // it may be a part of a large request
		entry := &clientEntry{client: client, since: c.count.Add(1), first: now, last: now}
		c.clients[client] = c.fresh.PushFront(entry)
		if len(c.clients) > c.limit {
			c.forgetLocked(c.fresh, c.fresh.Back()) // room for new ones is never 0, see settleLocked
		}
		return entry
	}
	entry := element.Value.(*clientEntry)
	entry.last = now
	switch {
	case entry.settled:
		c.settled.MoveToFront(element)
	case now.Sub(entry.first) >= settledAfter && c.settleLocked(now):
		c.fresh.Remove(element)
		entry.settled = true
		c.clients[client] = c.settled.PushFront(entry)
	default:
		c.fresh.MoveToFront(element)
	}
	return entry
}

// mostSettled is how many clients may be settled.
func (c *clientLRU) mostSettled() int { return c.limit - max(1, c.limit/4) }

// settleLocked reports whether there is room for one more settled client. To make room, it removes
// an idle one.
func (c *clientLRU) settleLocked(now time.Time) bool {
	if c.settled.Len() < c.mostSettled() {
		return true
	}
	oldest := c.settled.Back()
	if oldest == nil || now.Sub(oldest.Value.(*clientEntry).last) < idleAfter {
		return false
	}
	c.forgetLocked(c.settled, oldest)
	return true
}

func (c *clientLRU) forgetLocked(from *list.List, element *list.Element) {
	client := from.Remove(element).(*clientEntry).client
	delete(c.clients, client)
	c.engine.EndSession(client)
	c.gone(client, activity.ReasonForgotten)
}

// unread ends the watch of a notification that had no subscriber, and reports whether it did. It
// does not if the client has sent a KEYNOTIFY since: then the client has come back, and may have
// subscribed after the broker looked.
func (c *clientLRU) unread(notification pendingNotification) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.clients[notification.Client]
	if element == nil || element.Value.(*clientEntry).watched > notification.queued {
		return false
	}
	reply, _ := c.engine.Submit(statestore.Parse(statestore.Request{
		Client:  notification.Client,
		Payload: resp3.AppendCommand(nil, protocol.VerbKeyNotify, notification.Key, protocol.OptionStop),
	}), nil) // no client gets the reply, so it need not wait for a commit
	return reply.Outcome == statestore.OK
}

// endWatches ends all watches.
func (c *clientLRU) endWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for client, element := range c.clients {
		c.engine.Disconnect(client)
		element.Value.(*clientEntry).since = c.count.Add(1)
		c.gone(client, activity.ReasonBrokerRestarted)
	}
}

// since returns a number that changes whenever all watches of a client end.
func (c *clientLRU) since(client string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.clients[client]; element != nil {
		return element.Value.(*clientEntry).since
	}
	return 0
}

func (c *clientLRU) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.clients)
}
