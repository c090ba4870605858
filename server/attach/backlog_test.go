package attach

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

func waitingOf(client string) *waitingReply { return &waitingReply{address: address{client: client}} }

const large, small = 1 << 20, requestOverhead + 1<<10

// takeAll takes bytes for as many large requests of a client as there are.
func takeAll(b *backlog, client string) (taken int) {
	for b.take(waitingOf(client), large, false) {
		taken++
	}
	return taken
}

func TestAClientLeavesTheHalfOfTheBacklogToOthers(t *testing.T) {
	committing := int64(0)
	b := newBacklog(1<<20, func() int64 { return committing })
	for client, want := range []int{9, 4, 2, 1, 1, 0} {
		if got := takeAll(b, string(rune('a'+client))); got != want {
			t.Errorf("client %d has %d large changes, want %d", client, got, want)
		}
	}
	if !b.take(waitingOf("one more"), small, false) {
		t.Error("a small change is not taken beside them")
	}
	committing = b.full // by changes that many clients watch, and keys that expire
	if b.take(waitingOf("another"), small, false) {
		t.Error("a change is taken while too much is being committed")
	}
	const packet = 100 << 20
	if b := newBacklog(packet, func() int64 { return 0 }); !b.take(waitingOf("a"), packet+requestOverhead, false) {
		t.Error("one of the largest packets can never be taken")
	}
}

// unwritten is a journal without data. A store that does not serve commits nothing.
type unwritten struct{ statestore.Journal }

func (unwritten) Load(context.Context, func(statestore.Record) error) (former statestore.Former, err error) {
	return former, nil
}

func (unwritten) Standing() error                                  { return nil }
func (unwritten) Commit(context.Context, []statestore.Group) error { return nil }

// One publisher can make up any number of ids, but it takes a minute to make the store know them.
func TestMadeUpClientsLeaveTheHalfOfTheBacklogToThoseThatTheStoreKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := attachedTo(t, Options{Journal: unwritten{}})
		l := s.newLink(t.Context())
		set := func(client string, size int) (taken bool) {
			payload := resp3.AppendCommand(nil, "SET", client, strings.Repeat("v", size))
			before := s.Stats().Busy
			l.submit(address{client: client}, statestore.Parse(statestore.Request{Client: client, Payload: payload}))
			return s.Stats().Busy == before
		}
		for range 2 {
			l.submit(address{client: "known"}, keyNotify("known", "k"))
			time.Sleep(protectedAfter + time.Second)
		}
		for _, size := range []int{64 << 10, 0} {
			for i := 0; set(fmt.Sprint("made up ", size, i), size); i++ {
			}
		}
		taken := 0
		for set("known", 100) {
			taken++
		}
		if taken < 4 || taken > 8 {
			t.Errorf("%d small changes of a client that the store knows are taken, want about 6", taken)
		}
		for i := 0; s.backlog.take(waitingOf(fmt.Sprint(i)), small, true); i++ {
		}
		if most, used := 2*s.backlog.full, s.backlog.bytes.Used(); used > most || used < most-large {
			t.Errorf("all that wait have %d bytes, of %d", used, most)
		}
	})
}

// A store that leaves waits for all replies: those that wait for a commit, and those of an earlier
// connection, which are dropped. Then the next connection has the whole backlog.
func TestTheBacklogIsEmptyWhenAllRepliesHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := attachedTo(t, Options{})
		b := s.backlog
		former := s.newLink(t.Context())
		ctx, end := context.WithCancel(t.Context())
		present := s.newLink(ctx) // it has no connection, so it must send nothing
		replies := []*waitingReply{waitingOf("a"), waitingOf("b"), waitingOf("c")}
		for _, w := range replies {
			w.link = former
			b.take(w, small, false)
		}
		sent := make(chan struct{})
		go func() { defer close(sent); present.sendReplies() }()
		for _, w := range replies {
			flushing, cancel := context.WithTimeout(t.Context(), time.Second)
			if b.flush(flushing) {
				t.Error("a reply that waits for a commit counts as sent")
			}
			cancel()
			b.queue.push(w)
		}
		if !b.flush(t.Context()) {
			t.Error("replies stay")
		}
		end()
		await.Receive(sent)
		if b.bytes.Used() != 0 {
			t.Errorf("%d bytes stay", b.bytes.Used())
		}
	})
}
