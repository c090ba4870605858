package attach

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// testBacklog is a backlog beside other things that wait for a commit, as the test says.
type testBacklog struct {
	*backlog
	committing int64
}

func newTestBacklog(t *testing.T) *testBacklog {
	b := new(testBacklog)
	isSettled := func(client string) bool { return !strings.HasPrefix(client, "new ") }
	b.backlog = newBacklog(1<<20, isSettled, func() int64 { return b.committing })
	return b
}

func (b *testBacklog) mustBeEmpty(t *testing.T) {
	t.Helper()
	if !b.isEmpty() || b.bytes.Used() != 0 || len(b.queue) > 0 {
		t.Errorf("%d clients stay, with %d bytes and %d replies", len(b.clients), b.bytes.Used(), len(b.queue))
	}
}

func waitingOf(client string, bytes int64) *waitingReply {
	return &waitingReply{address: address{client: client}, bytes: bytes}
}

// takeAll takes room for as many equal requests of a client as there is.
func (b *testBacklog) takeAll(client string, bytes int64) (taken int) {
	for b.take(waitingOf(client, bytes)) {
		taken++
	}
	return taken
}

const large, small = 1 << 20, requestOverhead + 1<<10

func TestAClientCannotTakeTheRoomOfOthers(t *testing.T) {
	b := newTestBacklog(t)
	if got := b.takeAll("flood", large); got != 9 {
		t.Errorf("one client has %d large changes, want 9", got)
	}
	if got := b.takeAll("other", large); got != 4 {
		t.Errorf("another client has %d large changes, want 4", got)
	}
	for i := range 100 {
		if got := b.takeAll(fmt.Sprint("small ", i), small); got < assuredRequests {
			t.Errorf("a client beside them has %d small changes, want %d", got, assuredRequests)
		}
	}
}

func TestOneLargestPacketAlwaysHasRoom(t *testing.T) {
	const packet = 100 << 20
	if b := newBacklog(packet, func(string) bool { return false }, func() int64 { return 0 }); !b.take(waitingOf("a", packet+requestOverhead)) {
		t.Error("it can never be taken")
	}
}

// Beyond the bounds not even a small request is taken. Made-up ids leave half of it to settled clients.
func TestTheBacklogHasBoundsWhateverIdsAreClaimed(t *testing.T) {
	b := newTestBacklog(t)
	for _, test := range []struct {
		client string
		bound  int64
	}{
		{"new ", 2 * b.full}, {"settled ", 4 * b.full},
	} {
		for i := 0; b.bytes.Used() <= 5*b.full && b.take(waitingOf(fmt.Sprint(test.client, i), assuredBytes)); i++ {
		}
		if taken := b.bytes.Used(); taken < test.bound || taken > test.bound+assuredBytes {
			t.Errorf("with %sclients %d bytes are taken, and %d are the bound", test.client, taken, test.bound)
		}
	}

	b = newTestBacklog(t)
	b.committing = b.full // by changes that many clients watch, and keys that expire
	if b.take(waitingOf("a", large)) || !b.take(waitingOf("a", small)) {
		t.Error("what is large is taken, or what is small is not, while much is being committed")
	}
	b.committing = assuredFactor * b.full
	if b.take(waitingOf("new a", small)) || !b.take(waitingOf("a", small)) {
		t.Error("a new client is not refused before a settled one")
	}
	b.committing = settledFactor * b.full
	if b.take(waitingOf("a", small)) {
		t.Error("there is no bound for small requests")
	}
}

func TestAReplyGrowsWithinItsShare(t *testing.T) {
	b := newTestBacklog(t)
	first, second := waitingOf("a", small), waitingOf("b", small)
	b.take(first)
	grown := int64(0)
	for b.grow(first, large) {
		grown += large
	}
	if grown < b.full/2-2*large || grown > b.full/2 || !first.refused {
		t.Errorf("one client has %d bytes", grown)
	}
	b.take(second)
	if !b.grow(second, large) || second.refused {
		t.Error("another client has none")
	}
	b.committed(second, statestore.Reply{})
	b.next()
	if !b.grow(second, 2*b.full) {
		t.Error("a reply is refused that is being sent")
	}
	b.sent(second)
	b.cancel(first)
	b.mustBeEmpty(t)
}

// The replies of a store leave in order, and a store that leaves waits for all of them.
func TestTheBacklogIsEmptyWhenAllRepliesAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog(t)
		replies := []*waitingReply{waitingOf("a", small), waitingOf("a", small)}
		for _, w := range replies {
			b.take(w)
		}
		if _, ok := b.next(); ok {
			t.Error("a reply may leave before its commit")
		}
		flushed := make(chan bool, 1)
		go func() { flushed <- b.flush(t.Context()) }()
		for i, w := range replies {
			b.committed(w, statestore.Reply{})
			if got, _ := b.next(); got != w {
				t.Errorf("reply %d is %v", i, got)
			}
			synctest.Wait()
			if len(flushed) > 0 {
				t.Error("the store leaves before all is sent")
			}
			b.sent(w)
		}
		if !await.Receive(flushed) {
			t.Error("the store does not leave")
		}
		b.mustBeEmpty(t)
		b.take(waitingOf("a", small))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if b.flush(ctx) {
			t.Error("a reply that waits for a commit counts as sent")
		}
	})
}

// So do replies that were refused. The next connection of the store has all of the room.
func TestRepliesOfAConnectionThatHasEndedGiveTheirRoomBack(t *testing.T) {
	s := attachedTo(t, Options{})
	b := &testBacklog{backlog: s.backlog}
	former := s.newLink(t.Context(), false)
	ctx, end := context.WithCancel(t.Context())
	present := s.newLink(ctx, false) // it has no connection, so it must send nothing
	replies := []*waitingReply{waitingOf("a", small), waitingOf("b", small), waitingOf("c", small)}
	replies[0].link, replies[1].link, replies[2].link = former, former, present
	for _, w := range replies {
		b.take(w)
	}
	b.grow(replies[2], 2*b.full)
	for _, w := range replies {
		b.committed(w, statestore.Reply{})
	}
	sent := make(chan struct{})
	go func() { defer close(sent); present.sendReplies() }()
	if !await.Result(func() bool { return b.flush(t.Context()) }) {
		t.Error("replies stay")
	}
	end()
	await.Receive(sent)
	b.mustBeEmpty(t)
}
