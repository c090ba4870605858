package attach

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// The replies of a store leave in order, and a store that leaves waits for all of them.
func TestAQueueOfRepliesIsEmptyWhenAllAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog(t)
		q := newReplyQueue(b.backlog, nil)
		var replies []*waitingReply
		promise := func(client string) {
			w := &waitingReply{address: address{client: client}, change: 10, bytes: 20}
			if !b.take(w.client, w.change, w.bytes) {
				t.Fatal("no room")
			}
			q.promise()
			q.added(w) // by the goroutine that has the request
			replies = append(replies, w)
		}
		promise("a")
		promise("a")
		if len(q.queue) > 0 || b.takeBehind("a", 1) {
			t.Error("a reply may leave before its commit")
		}
		flushed := make(chan bool, 1)
		go func() { flushed <- q.flush(t.Context()) }()
		for i, w := range replies {
			q.added(w) // by the engine's goroutine
			if got, _ := q.next(); got != w {
				t.Errorf("reply %d is %v", i, got)
			}
			if !b.takeBehind("a", 1) || b.takeBehind("b", 1) {
				t.Error("a later reply overtakes one of the same client that is being sent, or waits for another client's")
			}
			b.cancel("a", 0, 1)
			synctest.Wait()
			if len(flushed) > 0 {
				t.Error("the store leaves before all is sent")
			}
			q.sent(w)
		}
		if !await.Receive(flushed) {
			t.Error("the store does not leave")
		}
		b.mustBeEmpty(t)
		promise("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if q.flush(ctx) {
			t.Error("a reply that waits for a commit counts as sent")
		}
	})
}

// So do replies that were refused. The next connection of the store has all of the room.
func TestRepliesOfAConnectionThatHasEndedGiveTheirRoomBack(t *testing.T) {
	b := newTestBacklog(t)
	q := newReplyQueue(b.backlog, nil)
	replies := []*waitingReply{
		{address: address{client: "a"}, change: 10, bytes: 20}, {address: address{client: "b"}, bytes: 20},
		{address: address{client: "c"}, bytes: 20, refused: true},
	}
	for _, w := range replies {
		b.take(w.client, w.change, w.bytes)
		q.promise()
		q.added(w)
	}
	q.added(replies[2])
	if len(q.queue) > 0 {
		t.Error("a refused reply is sent too")
	}
	q.added(replies[0])
	q.close()
	q.added(replies[1]) // its commit comes later
	if len(q.queue) > 0 {
		t.Error("it is kept")
	}
	b.mustBeEmpty(t)
}
