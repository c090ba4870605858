package attach

import (
	"math"
	"strings"
	"sync"

	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

const (
	// maxReplies and maxReplyBytes bound the replies that wait for a commit or to be sent.
	maxReplies    = 1 << 14
	maxReplyBytes = 64 << 20
	// scarce is how many replies wait when the places left are for clients that the store has known for
	// long.
	scarce = maxReplies / 4 * 3
	// replyOverhead is what a reply costs besides its texts while it waits, and changeOverhead what a
	// change costs besides its key and value, in bytes.
	replyOverhead, changeOverhead = 512, 512

	// changeRoom bounds the changes that wait for a commit, in bytes, besides two of the largest
	// packets. Half of it and one packet are the most that one client can have alone.
	changeRoom = 4 << 20
	// otherRoom is for what waits for a commit besides, such as keys that expire.
	otherRoom = 2 << 20

	// assuredRequests is how many requests of one client the store takes though others have filled
	// their room, and assuredChange and assuredReply is how large these may be, with their overhead.
	// So clients with made-up ids can add some 40 MB, and what waits for a commit may be
	// assuredFactor times as much.
	assuredRequests = 4
	assuredChange   = 1<<10 + changeOverhead
	assuredReply    = 512 + replyOverhead
	assuredFactor   = 4
)

// backlog is what waits for a commit, or to be sent after it, in a store with a journal. It is bounded,
// and divided among the clients that requests claim to come from: the goroutine that takes requests
// from the broker must not wait for a disk, because the renewals of all clients come the same way.
//
//   - A client may have at most as much as is left for all others.
//   - A small request of a client with little in the backlog is taken although others have filled
//     their room.
//   - The last quarter of the places is for clients that the store has known for a minute or longer:
//     one publisher can claim any number of new ids.
//
// It is safe for concurrent use.
type backlog struct {
	settled    func(client string) bool // see clientLRU
	committing func() int64             // how many bytes wait for a commit, of whatever
	full       int64                    // how many of them may, but for what is assured

	changes, replies *sharedquota.Quota // bytes
	places           *sharedquota.Quota // requests

	mu      sync.Mutex
	count   int // requests
	clients map[string]*clientBacklog
}

// clientBacklog is the part of one client.
type clientBacklog struct {
	requests         int64
	changes, replies int64 // bytes
	unsent           int   // requests whose commits are over
}

func newBacklog(maxPacket int64, settled func(string) bool, committing func() int64) *backlog {
	changes := changeRoom + 2*maxPacket
	return &backlog{
		settled:    settled,
		committing: committing,
		full:       changes + otherRoom,
		changes:    sharedquota.New(changes),
		replies:    sharedquota.New(maxReplyBytes),
		places:     sharedquota.New(maxReplies / 2),
		clients:    make(map[string]*clientBacklog),
	}
}

// isScarce reports whether the places left are for clients that the store has known for long.
func (b *backlog) isScarce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count >= scarce
}

// take takes room for a request of a client, with the bytes of its change, or 0, and of its reply. It
// reports false if too much waits. One goroutine calls it.
func (b *backlog) take(client string, change, reply int64) bool {
	committing := b.committing()
	settled := b.isScarce() && b.settled(client) // without the lock, which the engine's goroutine needs
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.clients[client]
	if own == nil {
		own = new(clientBacklog)
	}
	small := change <= assuredChange && reply <= assuredReply && own.requests < assuredRequests
	switch {
	case b.count >= maxReplies || b.count >= scarce && !settled:
		return false
	case committing >= assuredFactor*b.full || committing >= b.full && !small:
		return false
	}
	return b.takeLocked(client, own, small, change, reply)
}

func (b *backlog) takeLocked(client string, own *clientBacklog, small bool, change, reply int64) bool {
	assured := int64(0)
	if small {
		assured = math.MaxInt64
	}
	if !b.places.Take(own.requests, 1, assured) {
		return false
	}
	if change > 0 && !b.changes.Take(own.changes, change, assured) {
		b.places.Release(1)
		return false
	}
	if !b.replies.Take(own.replies, reply, assured) {
		b.places.Release(1)
		b.changes.Release(change)
		return false
	}
	if own.requests == 0 {
		b.clients[strings.Clone(client)] = own // the id may be a part of a large request
	}
	b.count++
	own.requests++
	own.changes += change
	own.replies += reply
	return true
}

// takeBehind takes room for a reply that may leave at once, if other replies of its client wait to be
// sent: replies about one key reach a client in the order of the store. It reports false if none wait,
// or if there is no room.
func (b *backlog) takeBehind(client string, reply int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.clients[client]
	return own != nil && own.unsent > 0 && b.count < maxReplies && b.takeLocked(client, own, false, 0, reply)
}

// grow takes more room for the reply of a request that has some.
func (b *backlog) grow(client string, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.clients[client]
	if !b.replies.Take(own.replies, bytes, assuredReply) {
		return false
	}
	own.replies += bytes
	return true
}

// committed gives back the room of a change, whose reply waits to be sent.
func (b *backlog) committed(client string, change int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.clients[client]
	own.unsent++
	own.changes -= change
	b.changes.Release(change)
}

// sent gives back the room of a reply after committed.
func (b *backlog) sent(client string, reply int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients[client].unsent--
	b.leaveLocked(client, 0, reply)
}

// cancel gives back the room of a request that needs none.
func (b *backlog) cancel(client string, change, reply int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaveLocked(client, change, reply)
}

func (b *backlog) leaveLocked(client string, change, reply int64) {
	own := b.clients[client]
	own.requests--
	own.changes -= change
	own.replies -= reply
	b.count--
	b.places.Release(1)
	b.changes.Release(change)
	b.replies.Release(reply)
	if own.requests == 0 {
		delete(b.clients, client)
	}
}
