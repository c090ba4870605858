package engine

import (
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// batch is what one commit makes durable, and what leaves after it.
type batch struct {
	groups  []statestore.Group
	size    int64            // of the groups, see maxWaiting
	keys    map[string]bool  // which the groups change
	bound   statestore.Bound // of the versions, after the last group
	pending []pending        // in the order of the store
	last    uint64           // the order of the last that was held when the commit ended
	// notified has each client that a held notification is for, with the order of the last that was
	// held when the client disconnected; 0: it has not.
	notified map[string]uint64
}

// pending is a reply with its notifications, or the notifications of an expiry, that wait for a commit.
type pending struct {
	order         uint64 // of all that was held; a client that disconnected later gets no notification
	notifications []statestore.Notification
	reply         statestore.Reply
	arrived       time.Duration          // see Command.Arrived
	done          func(statestore.Reply) // may be nil
	late          bool                   // held after the commit of its batch had begun
	expired       bool                   // there is no reply: keys have expired
}

const (
	// groupBytes and pendingBytes stand for the memory of a group and of what is held, besides
	// the bytes of records. They count towards maxWaiting.
	groupBytes, recordBytes, pendingBytes, notificationBytes = 64, 64, 184, 24
	// maxWaiting is how much may wait for a commit before AwaitCapacity makes its callers wait.
	maxWaiting = 8 << 20
	// sendBatch is how many notifications and replies leave while the lock is held, see
	// expireBatch.
	sendBatch = 256
	// removeBatch is how many obsolete records a commit removes, besides as many as it has groups: with
	// each of these comes one new record at most that is obsolete later. So they do not pile up.
	removeBatch = 512
)

// size returns the memory that counts towards maxWaiting.
func (h *pending) size() int64 {
	return pendingBytes + notificationBytes*int64(len(h.notifications))
}

func sizeOf(group statestore.Group) int64 {
	size := int64(groupBytes)
	for _, record := range group {
		size += recordBytes + int64(len(record.ID)) + int64(len(record.Value))
	}
	return size
}

func newBatch() *batch {
	return &batch{keys: make(map[string]bool), notified: make(map[string]uint64)}
}
