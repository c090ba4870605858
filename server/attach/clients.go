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
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// protectedAfter is how long after its first request the next one of a client protects it.
	protectedAfter = time.Minute
	// idleAfter is how long a protected client must have been silent before another one is protected in its place.
	idleAfter = 10 * time.Minute
)

// clientLRU remembers the clients that have sent requests. The broker does not say which of them are gone, or
// made up: one publisher can claim any ids. So a client is new at first, and one client too many replaces the new
// one that has been silent for longest. Up to three quarters of the clients are protected.
//
// It is safe for concurrent use. It calls the engine with its lock held, so the engine must never
// call it.
type clientLRU struct {
	engine *engine.Engine
	limit  int
	come   *events.Clients
	count  atomic.Uint64 // numbers KEYNOTIFYs, notifications, and what ends watches, in order

	mu        sync.Mutex
	probation list.List                // of *clientEntry, the new ones; the one that was heard last is in front
	protected list.List                // likewise
	clients   map[string]*list.Element // of both
}

type clientEntry struct {
	client    string
	watched   uint64 // the number of its last KEYNOTIFY; 0: none
	since     uint64 // no watch of it is older, by clientLRU.count
	seen      *events.Client
	first     time.Time // when it was heard first
	last      time.Time
	protected bool
}

func newClientLRU(engine *engine.Engine, limit int, come *events.Clients) *clientLRU {
	return &clientLRU{engine: engine, limit: limit, come: come, clients: make(map[string]*list.Element)}
}

// restore remembers clients with requests in a journal, as far as there is space: each may deliver its last
// requests again. They count as protected.
func (c *clientLRU) restore(clients []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range clients {
		if len(c.clients) < c.limit {
			c.heardLocked(client).first = time.Time{}
			c.heardLocked(client)
		} else {
			c.engine.EndSession(client)
		}
	}
}

// heard notes that a client is there, and returns what the store has seen of it, and whether it is protected. If
// there are too many clients, it forgets another one. watches says that the client asks to watch: what its
// earlier watches missed no longer counts.
func (c *clientLRU) heard(client string, watches bool) (seen *events.Client, protected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.heardLocked(client)
	if watches {
		entry.watched = c.count.Add(1)
	}
	return entry.seen, entry.protected
}

func (c *clientLRU) heardLocked(client string) *clientEntry {
	now := time.Now()
	element := c.clients[client]
	if element == nil {
		return c.addLocked(client, now)
	}
	entry := element.Value.(*clientEntry)
	entry.last = now
	switch {
	case entry.protected:
		c.protected.MoveToFront(element)
	case now.Sub(entry.first) > protectedAfter && c.makePlaceLocked(now):
		entry.protected = true
		c.probation.Remove(element)
		c.clients[entry.client] = c.protected.PushFront(entry)
	default:
		c.probation.MoveToFront(element)
	}
	return entry
}

func (c *clientLRU) addLocked(client string, now time.Time) *clientEntry {
	if len(c.clients) >= c.limit {
		c.forgetLocked(&c.probation) // it is not empty, see makePlaceLocked
	}
	client = strings.Clone(client) // it may be a part of a large request
	entry := &clientEntry{client: client, since: c.count.Add(1), first: now, last: now}
	entry.seen = c.come.Come(client, "", "", false)
	c.clients[client] = c.probation.PushFront(entry)
	return entry
}

// makePlaceLocked reports whether one more client may be protected. If all places are taken, an idle client gives
// way.
func (c *clientLRU) makePlaceLocked(now time.Time) bool {
	most := c.limit - max(1, c.limit/4)
	if c.protected.Len() < most {
		return true
	}
	if most == 0 || now.Sub(c.protected.Back().Value.(*clientEntry).last) < idleAfter {
		return false
	}
	c.forgetLocked(&c.protected)
	return true
}

// forgetLocked forgets the client of a list that has been silent for longest.
func (c *clientLRU) forgetLocked(of *list.List) {
	silent := of.Remove(of.Back()).(*clientEntry)
	delete(c.clients, silent.client)
	c.engine.EndSession(silent.client)
	silent.seen.Go(activity.ReasonForgotten)
}

// find returns what the store has seen of a client, or nil if it does not remember that, and a number that changes
// whenever all watches of the client end.
func (c *clientLRU) find(client string) (seen *events.Client, since uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.clients[client]; element != nil {
		entry := element.Value.(*clientEntry)
		return entry.seen, entry.since
	}
	return nil, 0
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
	}
}

func (c *clientLRU) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.clients)
}
