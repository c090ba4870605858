package server

import (
	"container/list"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// maxUnsent is how many notifications may wait for the broker, and maxUnsentBytes how many
// bytes they may have.
const (
	maxUnsent      = 1 << 14
	maxUnsentBytes = 64 << 20
)

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
	bytes int64 // of queue
	lost  uint64
}

func newUnsent() *unsent { return &unsent{wake: make(chan struct{}, 1)} }

// push queues a notification, or loses it if there are too many.
func (u *unsent) push(notification pendingNotification) {
	u.mu.Lock()
	defer u.mu.Unlock()
	cost := costOf(notification.Change)
	if len(u.queue) >= maxUnsent || u.bytes+cost > maxUnsentBytes {
		u.lost++
		return
	}
	u.bytes += cost
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
	u.bytes -= costOf(first.Change)
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
	u.queue, u.bytes = nil, 0
}

const (
	// settledAfter is how long after its first request a client has to be heard of again to be a
	// settled one.
	settledAfter = time.Minute
	// idleAfter is how long a settled client must have been silent for another to take its
	// place.
	idleAfter = 10 * time.Minute
)

// roster is the clients that an attached store has heard of. The broker does not say which of
// them are gone, nor which of them are real: a single publisher can claim any number of names. So
// the roster keeps two lists. A client is new at first, and settled once it is heard of
// again after settledAfter. For one client too many the new one is forgotten that was
// silent for longest, never a settled one: a flood of new names replaces itself only. At
// least a quarter of the places are kept for new clients. A client becomes
// settled in a full list only in place of one that is idle.
//
// It is safe for concurrent use, and may call the engine with its lock held: the engine must never
// call it.
type roster struct {
	engine *engine.Engine
	limit  int
	now    func() time.Time
	count  atomic.Uint64 // of KEYNOTIFYs and notifications, which are thereby in order

	mu      sync.Mutex
	fresh   *list.List               // the new ones; the latest is in front
	settled *list.List               // likewise
	clients map[string]*list.Element // of *rosterEntry, in fresh or settled
}

type rosterEntry struct {
	client  string
	watched uint64    // when its last KEYNOTIFY was applied, by count; 0: never
	first   time.Time // when it was heard of first
	last    time.Time // when it was heard of last
	settled bool      // which list it is in
}

func newRoster(engine *engine.Engine, limit int) *roster {
	return &roster{engine: engine, limit: limit, now: time.Now, fresh: list.New(), settled: list.New(), clients: make(map[string]*list.Element)}
}

// apply applies a command that its client has just sent. For one client more than there
// may be, it forgets another.
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
	now := r.now()
	element := r.clients[client]
	if element == nil {
		client = strings.Clone(client) // it may be a part of a large request
		entry := &rosterEntry{client: client, first: now, last: now}
		r.clients[client] = r.fresh.PushFront(entry)
		if len(r.clients) > r.limit {
			r.forgetLocked(r.fresh, r.fresh.Back()) // room for new ones is never 0, see settleLocked
		}
		return entry
	}
	entry := element.Value.(*rosterEntry)
	entry.last = now
	switch {
	case entry.settled:
		r.settled.MoveToFront(element)
	case now.Sub(entry.first) >= settledAfter && r.settleLocked(now):
		r.fresh.Remove(element)
		entry.settled = true
		r.clients[client] = r.settled.PushFront(entry)
	default:
		r.fresh.MoveToFront(element)
	}
	return entry
}

// settleLocked reports whether there is room for one settled client more, and makes it if
// that costs only an idle one.
func (r *roster) settleLocked(now time.Time) bool {
	most := r.limit - max(1, r.limit/4)
	if r.settled.Len() < most {
		return true
	}
	oldest := r.settled.Back()
	if oldest == nil || now.Sub(oldest.Value.(*rosterEntry).last) < idleAfter {
		return false
	}
	r.forgetLocked(r.settled, oldest)
	return true
}

func (r *roster) forgetLocked(from *list.List, element *list.Element) {
	client := from.Remove(element).(*rosterEntry).client
	delete(r.clients, client)
	r.engine.EndSession(client)
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
		r.engine.Disconnect(client)
	}
}

func (r *roster) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.clients)
}
