package attach

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestAQueueOfRepliesTakesWhatFitsAndWaitsForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		q := newReplyQueue(ended)
		if !q.take(2 * maxReplyBytes) {
			t.Error("one reply has no room")
		}
		taken := make(chan bool, 1)
		waits := func(take func() bool) {
			t.Helper()
			go func() { taken <- take() }()
			synctest.Wait()
			if len(taken) > 0 {
				t.Fatal("there is more room than may be")
			}
		}
		waits(func() bool { return q.take(1) })
		q.giveBack(2 * maxReplyBytes)
		if !await.Receive(taken) {
			t.Error("no room after some was given back")
		}
		for range maxReplies - 1 {
			if !q.take(1) {
				t.Fatal("no room for as many replies as may wait")
			}
		}
		waits(func() bool { return q.take(1) })
		q.giveBack(1)
		await.Receive(taken)
		waits(func() bool { return q.grow(maxReplyBytes) })
		close(ended)
		if await.Receive(taken) {
			t.Error("room after the end of the connection")
		}
	})
}

// A later reply waits behind those that are not sent, and a store leaves when all are.
func TestAQueueOfRepliesIsEmptyWhenAllAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newReplyQueue(nil)
		replies := []*waitingReply{{room: 10}, {room: 20}}
		for _, w := range replies {
			q.take(w.room)
			q.added(w) // by the goroutine that has the request
		}
		if q.next() != nil || !q.unsentNone() {
			t.Error("a reply may leave before its commit")
		}
		flushed := make(chan bool, 1)
		go func() { flushed <- q.flush(t.Context()) }()
		for i, w := range replies {
			q.added(w) // by the engine's goroutine
			if q.unsentNone() {
				t.Error("a later reply overtakes one that is queued")
			}
			if got := q.next(); got != w {
				t.Errorf("reply %d is %v", i, got)
			}
			synctest.Wait()
			if q.unsentNone() || len(flushed) > 0 {
				t.Error("a later reply overtakes one that is being sent, or the store leaves meanwhile")
			}
			q.sent(w)
		}
		if !await.Receive(flushed) || q.bytes != 0 || q.promised != 0 {
			t.Errorf("after all are sent: %+v", q)
		}
		q.take(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if q.flush(ctx) {
			t.Error("a reply that waits for a commit counts as sent")
		}
	})
}
