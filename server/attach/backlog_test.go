package attach

import (
	"fmt"
	"testing"
)

// testBacklog is a backlog with a store that a test decides about.
type testBacklog struct {
	*backlog
	committing int64
	known      map[string]bool
}

func newTestBacklog(t *testing.T) *testBacklog {
	b := &testBacklog{known: make(map[string]bool)}
	b.backlog = newBacklog(1<<20, func(client string) bool { return b.known[client] }, func() int64 { return b.committing })
	return b
}

func (b *testBacklog) mustBeEmpty(t *testing.T) {
	t.Helper()
	if b.count != 0 || len(b.clients) != 0 || b.changes.Used() != 0 || b.replies.Used() != 0 || b.places.Used() != 0 {
		t.Errorf("%d requests of %d clients stay, with %d, %d and %d", b.count, len(b.clients), b.changes.Used(), b.replies.Used(), b.places.Used())
	}
}

// takeAll takes room for as many equal requests of a client as there is.
func (b *testBacklog) takeAll(client string, change, reply int64) (taken int) {
	for taken <= 2*maxReplies && b.take(client, change, reply) {
		taken++
	}
	return taken
}

const large, small, tiny = 1 << 20, 1 << 10, 600

func TestAClientCannotTakeTheRoomOfOthers(t *testing.T) {
	b := newTestBacklog(t)
	if got := b.takeAll("flood", large, tiny); got != 3 {
		t.Errorf("one client has %d large changes, want 3", got)
	}
	if got := b.takeAll("other", large, tiny); got != 1 {
		t.Errorf("another client has %d large changes, want 1", got)
	}
	if got := b.takeAll("reader", 0, large); got < 20 || got > 32 {
		t.Errorf("a client has %d large replies", got)
	}
	for i := range 100 {
		if got := b.takeAll(fmt.Sprint("small ", i), small, tiny); got < assuredRequests {
			t.Errorf("a client beside them has %d small changes, want %d", got, assuredRequests)
		}
	}
	b = newTestBacklog(t)
	if got := b.takeAll("flood", 0, tiny); got < maxReplies/4-1 || got > maxReplies/4 {
		t.Errorf("one client has %d of %d places", got, maxReplies)
	}
}

func TestOneLargestPacketAlwaysHasRoom(t *testing.T) {
	const packet = 100 << 20
	b := newBacklog(packet, nil, func() int64 { return 0 })
	if !b.take("a", packet, tiny) {
		t.Error("it can never be taken")
	}
	if !newBacklog(1024, nil, func() int64 { return 0 }).take("a", 1024, 100<<10) {
		t.Error("a large reply can never be taken")
	}
}

// Beyond the bounds not even a small request is taken.
func TestTheBacklogHasBoundsWhateverIdsAreClaimed(t *testing.T) {
	b := newTestBacklog(t)
	b.known["known"] = true
	taken := 0
	for b.take(fmt.Sprint("new ", taken), assuredChange, assuredReply) {
		taken++
	}
	if taken != scarce {
		t.Errorf("new clients have %d of %d places", taken, maxReplies)
	}
	if !b.take("known", small, tiny) {
		t.Error("a client that the store has known for long has no place")
	}
	for i := range maxReplies {
		client := fmt.Sprint("known ", i)
		b.known[client] = true
		if b.take(client, small, tiny) {
			taken++
		}
	}
	if taken != maxReplies-1 || b.take("known", small, tiny) {
		t.Errorf("%d requests are taken, want %d", taken+1, maxReplies)
	}

	b = newTestBacklog(t)
	b.committing = b.full // by changes that many clients watch, and keys that expire
	if b.take("a", large, tiny) || !b.take("a", small, tiny) {
		t.Error("what is large is taken, or what is small is not, while much is being committed")
	}
	b.committing = assuredFactor * b.full
	if b.take("a", small, tiny) {
		t.Error("there is no bound for small requests")
	}
}

func TestAReplyGrowsWithinItsShare(t *testing.T) {
	b := newTestBacklog(t)
	b.take("a", 0, tiny)
	grown := int64(0)
	for b.grow("a", large) {
		grown += large
	}
	if grown < maxReplyBytes/2-2*large || grown > maxReplyBytes/2 {
		t.Errorf("one client has %d bytes", grown)
	}
	b.take("b", 0, tiny)
	if !b.grow("b", large) {
		t.Error("another client has none")
	}
	b.committed("b", 0)
	b.sent("b", tiny+large)
	b.cancel("a", 0, tiny+grown)
	b.mustBeEmpty(t)
}
