package attach

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/wake"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// backlogSize bounds the backlog in bytes, besides two of the largest packets, and what protectedBytes adds.
	// Half of it and one packet are the most that one client can have alone.
	backlogSize = 16 << 20
	// protectedBytes are for each protected client though others have filled the backlog, until twice as much waits.
	// They suffice for some changes of leases.
	protectedBytes = 8 << 10
	// requestOverhead is what a request costs besides its texts and value while it waits.
	requestOverhead = 1 << 10
)

// backlog is the replies that wait for a commit, and the queue of all that wait to be sent. What has waited for
// a commit is bounded: the goroutine that takes requests from the broker must not wait for a disk, because the
// renewals of all clients come the same way. A client may have at most as much as is left for all others. As
// much again is for small requests of protected clients only: one publisher can claim any number of new ids.
// The value of a reply that waits is a part of the store, or of a change that waits too.
//
// It is safe for concurrent use.
type backlog struct {
	committing func() int64 // how many bytes wait for a commit, of whatever
	full       int64
	bytes      *sharedquota.Users
	queue      *queue[*waitingReply] // whose commits are over
	unsent     atomic.Int64          // all that will be in the queue, is there, or is being sent
	left       chan struct{}         // has an item after a reply has left
}

// waitingReply is a reply, or another message, that waits.
type waitingReply struct {
	address
	link    *link // on which the request came
	bytes   int64
	shared  bool             // they are a part of the backlog; otherwise of link.unsent
	reply   statestore.Reply // after the commit
	message *mqtt.Message    // in place of reply, if it is not nil
}

func newBacklog(maxPacket int64, committing func() int64) *backlog {
	full := backlogSize + 2*maxPacket
	return &backlog{
		committing: committing,
		full:       full,
		bytes:      sharedquota.NewUsers(full),
		queue:      newQueue[*waitingReply](),
		left:       make(chan struct{}, 1),
	}
}

// take takes bytes for a reply that has to wait for a commit, and for the change before it. It reports false
// if too much waits.
func (b *backlog) take(w *waitingReply, bytes int64, protected bool) bool {
	most, assured := b.full, int64(0)
	if protected {
		if most *= 2; b.bytes.Used()+bytes <= most {
			assured = protectedBytes
		}
	}
	client := strings.Clone(w.client) // it is a part of a longer topic
	if b.committing() >= most || !b.bytes.Change(client, bytes, assured) {
		return false
	}
	w.bytes, w.shared = bytes, true
	b.unsent.Add(1)
	return true
}

// release gives back the bytes of a reply that was sent, or will not be.
func (b *backlog) release(w *waitingReply) {
	if w.shared {
		b.bytes.Change(w.client, -w.bytes, 0)
	} else {
		w.link.unsent.Release(w.bytes)
	}
	b.unsent.Add(-1)
	wake.Up(b.left)
}

// flush waits until no reply waits, neither for a commit nor to be sent. It reports false if ctx ends before.
// No request may come meanwhile.
func (b *backlog) flush(ctx context.Context) bool {
	for b.unsent.Load() > 0 {
		select {
		case <-b.left:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
