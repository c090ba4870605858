package server

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// maxUnsent is how many notifications may wait for the broker.
const maxUnsent = 1 << 14

// pendingNotification is a notification on its way.
type pendingNotification struct {
	statestore.Notification
	queued uint64 // when, by roster.count
}

// unsent is the queue of notifications to the broker, for all clients. It is safe for
// concurrent use.
type unsent struct {
	wake chan struct{}

	mu    sync.Mutex
	queue []pendingNotification
	lost  uint64
}

func newUnsent() *unsent { return &unsent{wake: make(chan struct{}, 1)} }

// push queues a notification, or loses it if there are too many.
func (u *unsent) push(notification pendingNotification) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.queue) >= maxUnsent {
		u.lost++
		return
	}
	u.queue = append(u.queue, notification)
	u.signal()
}

func (u *unsent) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// take removes the oldest notification.
func (u *unsent) take() (pendingNotification, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.queue) == 0 {
		u.queue = nil
		return pendingNotification{}, false
	}
	first := u.queue[0]
	u.queue[0] = pendingNotification{}
	u.queue = u.queue[1:]
	return first, true
}

// overflow returns how many were lost.
func (u *unsent) overflow() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lost
}

// clear removes all.
func (u *unsent) clear() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.queue = nil
}

// roster is the clients that an attached store has heard of. Nobody tells it which of
// them are gone, so it keeps those that were heard of last, and bounds with them what the
// store remembers. It is safe for concurrent use, and may call the engine with its lock
// held: the engine must never call it.
type roster struct {
	engine *engine.Engine
	limit  int
	count  atomic.Uint64 // of KEYNOTIFYs and notifications, which are thereby in order

	mu      sync.Mutex
	recent  *list.List
	clients map[string]*list.Element // of *rosterEntry, in recent; the latest is in front
}

type rosterEntry struct {
	client  string
	watched uint64 // when its last KEYNOTIFY was applied, by count; 0: never
}

func newRoster(engine *engine.Engine, limit int) *roster {
	return &roster{engine: engine, limit: limit, recent: list.New(), clients: make(map[string]*list.Element)}
}

// apply applies a command that its client has just sent. For one client more than there
// may be, it forgets the one that was silent for longest.
func (r *roster) apply(command statestore.Command) statestore.Reply {
	r.mu.Lock()
	entry := r.heardLocked(command.Client)
	if command.Verb != statestore.VerbKeyNotify {
		r.mu.Unlock()
		return r.engine.Apply(command)
	}
	defer r.mu.Unlock()
	reply := r.engine.Apply(command)
	entry.watched = r.count.Add(1)
	return reply
}

func (r *roster) heardLocked(client string) *rosterEntry {
	element := r.clients[client]
	if element == nil {
		element = r.recent.PushFront(&rosterEntry{client: client})
		r.clients[client] = element
	} else {
		r.recent.MoveToFront(element)
	}
	if len(r.clients) > r.limit {
		oldest := r.recent.Remove(r.recent.Back()).(*rosterEntry)
		delete(r.clients, oldest.client)
		r.engine.EndSession(oldest.client)
	}
	return element.Value.(*rosterEntry)
}

// unread ends the watch to which a notification belongs that nobody reads, unless the
// client has sent a KEYNOTIFY since: then it has come back, and may have subscribed after
// the broker looked. It reports whether it did.
func (r *roster) unread(notification pendingNotification) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	element := r.clients[notification.Client]
	if element == nil || element.Value.(*rosterEntry).watched > notification.queued {
		return false
	}
	reply := r.engine.Apply(statestore.Parse(statestore.Request{
		Client:  notification.Client,
		Payload: resp3.AppendCommand(nil, protocol.VerbKeyNotify, notification.Key, protocol.OptionStop),
	}))
	return reply.Outcome == statestore.OK
}

// forgetWatches ends all watches.
func (r *roster) forgetWatches() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for client := range r.clients {
		r.engine.Forget(client)
	}
}

func (r *roster) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.clients)
}
