package attach

import (
	"container/list"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/statestore"
)

// clientLRU remembers the clients that have sent requests, the latest ones: the broker does not say which of
// them are gone. One client too many replaces the one that has been silent for longest.
//
// It is safe for concurrent use. It calls the engine with its lock held, so the engine must never
// call it.
type clientLRU struct {
	engine *engine.Engine
	limit  int
	come   *events.Clients
	count  atomic.Uint64 // numbers KEYNOTIFYs, notifications, and what ends watches, in order

	mu      sync.Mutex
	latest  *list.List               // of *clientEntry; the one that was heard last is in front
	clients map[string]*list.Element // of latest
}

type clientEntry struct {
	client  string
	watched uint64 // the number of its last KEYNOTIFY; 0: none
	since   uint64 // no watch of it is older, by clientLRU.count
	seen    *events.Client
}

func newClientLRU(engine *engine.Engine, limit int, come *events.Clients) *clientLRU {
	return &clientLRU{
		engine: engine, limit: limit, come: come,
		latest: list.New(), clients: make(map[string]*list.Element),
	}
}

// restore remembers clients with requests in a journal, as far as there is room: each may deliver its last
// requests again.
func (c *clientLRU) restore(clients []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range clients {
		if len(c.clients) < c.limit {
			c.heardLocked(client)
		} else {
			c.engine.EndSession(client)
		}
	}
}

// heard notes that the client of a command is there, and calls apply, which submits the command. If there are too
// many clients, it forgets another one.
func (c *clientLRU) heard(command *statestore.Command, apply func() (statestore.Reply, bool)) (statestore.Reply, bool) {
	c.mu.Lock()
	entry := c.heardLocked(command.Client)
	if command.Verb != statestore.VerbKeyNotify {
		c.mu.Unlock()
		return apply()
	}
	defer c.mu.Unlock()
	defer func() { entry.watched = c.count.Add(1) }()
	return apply()
}

func (c *clientLRU) heardLocked(client string) *clientEntry {
	if element := c.clients[client]; element != nil {
		c.latest.MoveToFront(element)
		return element.Value.(*clientEntry)
	}
	if len(c.clients) >= c.limit {
		silent := c.latest.Remove(c.latest.Back()).(*clientEntry)
		delete(c.clients, silent.client)
		c.engine.EndSession(silent.client)
		silent.seen.Go(activity.ReasonForgotten)
	}
	entry := &clientEntry{client: strings.Clone(client), since: c.count.Add(1)} // it may be a part of a large request
	entry.seen = c.come.Come(entry.client, "", "", false)
	c.clients[entry.client] = c.latest.PushFront(entry)
	return entry
}

// seen returns what the store has seen of a client; nil: it does not remember that.
func (c *clientLRU) seen(client string) *events.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.clients[client]; element != nil {
		return element.Value.(*clientEntry).seen
	}
	return nil
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
