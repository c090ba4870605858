package attach

import (
	"context"
	"math"
	"strings"
	"sync"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// backlogRoom bounds the backlog in bytes, besides two of the largest packets. Half of it and one packet
	// are the most that one client can have alone.
	backlogRoom = 16 << 20
	// requestOverhead is what a request costs besides its texts and value while it waits.
	requestOverhead = 1 << 10

	// assuredRequests is how many requests of one client the store takes though others have filled the
	// backlog, and assuredBytes is how large these may be. So clients with made-up ids can fill it
	// assuredFactor times, and settled ones settledFactor times.
	assuredRequests = 4
	assuredBytes    = requestOverhead + 2<<10
	assuredFactor   = 2
	settledFactor   = 4
)

// backlog is the replies that wait for a commit, and the queue of all that wait to be sent. What has waited for
// a commit is bounded, and divided among the clients that requests claim to come from: the goroutine that takes
// requests from the broker must not wait for a disk, because the renewals of all clients come the same way.
//
//   - A client may have at most as much as is left for all others.
//   - A small request of a client with few others in the backlog is taken although others have filled it.
//   - Half of the bytes for these are for settled clients: one publisher can claim any number of new ids.
//
// It is safe for concurrent use.
type backlog struct {
	settled    func(client string) bool // see clientLRU
	committing func() int64             // how many bytes wait for a commit, of whatever
	full       int64
	bytes      *sharedquota.Quota
	wake       chan struct{} // has an item after a reply was queued
	left       chan struct{} // has an item after a reply has left

	mu      sync.Mutex
	clients map[string]*clientBacklog
	queue   []*waitingReply // whose commits are over
	queued  int             // those, and the one that is being sent
}

// clientBacklog is the part of one client.
type clientBacklog struct {
	requests int
	bytes    int64
}

// waitingReply is a reply, or another message, that waits.
type waitingReply struct {
	address
	link    *link // on which the request came
	bytes   int64
	shared  bool             // its room is a part of the backlog; otherwise of link.sendRoom
	reply   statestore.Reply // after the commit
	message *mqtt.Message    // in place of reply, if it is not nil
	refused bool             // there is no room for its value
	leaving bool             // it is being sent
}

func newBacklog(maxPacket int64, settled func(string) bool, committing func() int64) *backlog {
	full := backlogRoom + 2*maxPacket
	return &backlog{
		settled:    settled,
		committing: committing,
		full:       full,
		bytes:      sharedquota.New(full),
		wake:       make(chan struct{}, 1),
		left:       make(chan struct{}, 1),
		clients:    make(map[string]*clientBacklog),
	}
}

// take takes room for a reply that has to wait for a commit, and for the change before it. It reports false
// if too much waits.
func (b *backlog) take(w *waitingReply) bool {
	committing, most := b.committing(), assuredFactor*b.full
	if b.settled(w.client) { // without the lock: clientLRU calls the engine with its own, which calls committed
		most = settledFactor * b.full
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	own, known := b.clients[w.client]
	if !known {
		own = new(clientBacklog)
	}
	assured := int64(0)
	if w.bytes <= assuredBytes && own.requests < assuredRequests {
		assured = math.MaxInt64
	}
	if max(committing, b.bytes.Used()) >= most || committing >= b.full && assured == 0 {
		return false
	}
	if !b.bytes.Take(own.bytes, w.bytes, assured) {
		return false
	}
	if !known {
		b.clients[strings.Clone(w.client)] = own // the id is a part of a longer topic
	}
	own.requests++
	own.bytes += w.bytes
	w.shared = true
	return true
}

// grow takes more room for a reply, for its value. It reports false if there is none: the reply will not be
// sent then.
func (b *backlog) grow(w *waitingReply, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.clients[w.client]
	if w.leaving {
		return true
	}
	if !b.bytes.Take(own.bytes, bytes, assuredBytes) {
		w.refused = true
		return false
	}
	own.bytes += bytes
	w.bytes += bytes
	return true
}

// committed queues a reply that take has taken room for.
func (b *backlog) committed(w *waitingReply, reply statestore.Reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.reply = reply
	b.queueLocked(w)
}

// add queues what may leave at once.
func (b *backlog) add(w *waitingReply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queueLocked(w)
}

func (b *backlog) queueLocked(w *waitingReply) {
	b.queue = append(b.queue, w)
	b.queued++
	signalOne(b.wake)
}

// next returns the next reply to send.
func (b *backlog) next() (first *waitingReply, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if first, ok = pop(&b.queue); ok {
		first.leaving = true
	}
	return first, ok
}

// sent gives back the room of what next has returned.
func (b *backlog) sent(w *waitingReply) {
	b.mu.Lock()
	b.queued--
	b.mu.Unlock()
	b.cancel(w)
}

// cancel gives back the room of what will not be sent.
func (b *backlog) cancel(w *waitingReply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer signalOne(b.left)
	if !w.shared {
		w.link.sendRoom.Release(w.bytes)
		return
	}
	own := b.clients[w.client]
	own.requests--
	own.bytes -= w.bytes
	b.bytes.Release(w.bytes)
	if own.requests == 0 {
		delete(b.clients, w.client)
	}
}

// flush waits until no reply waits, neither for a commit nor to be sent. It reports false if ctx ends before.
// No request may come meanwhile.
func (b *backlog) flush(ctx context.Context) bool {
	for !b.isEmpty() {
		select {
		case <-b.left:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (b *backlog) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.clients) == 0 && b.queued == 0
}
