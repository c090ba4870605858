package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// A verdict is what a held commit does: it keeps the first groups and fails, or keeps all.
type verdict struct {
	keep int
	err  error
}

// A disk is a journal in memory. While it is held each commit waits for the test.
type disk struct {
	verdicts chan verdict

	mu       sync.Mutex
	records  map[string][]byte
	batches  []int // how many groups each committed batch had
	held     bool
	latency  time.Duration
	standing error
	asked    int  // how often Standing was called
	during   bool // a commit is under way
	failed   bool // and must not be used any more
}

func newDisk() *disk {
	return &disk{verdicts: make(chan verdict), records: make(map[string][]byte)}
}

func (d *disk) Load(ctx context.Context, each func(statestore.Record) error) error {
	d.mu.Lock()
	records := maps.Clone(d.records)
	d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(records)) {
		if err := each(statestore.Record{ID: []byte(id), Value: bytes.Clone(records[id])}); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) Commit(ctx context.Context, batch []statestore.Group) error {
	d.mu.Lock()
	if d.during || d.failed || len(batch) == 0 {
		panic("two commits at once, an empty one, or one after a failure")
	}
	d.during = true
	held, latency := d.held, d.latency
	d.mu.Unlock()
	decided := verdict{}
	if held {
		select {
		case decided = <-d.verdicts:
		case <-ctx.Done():
			decided = verdict{err: context.Cause(ctx)}
		}
	}
	time.Sleep(latency)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.during = false
	if decided.err != nil {
		batch = batch[:min(decided.keep, len(batch))]
		d.failed = true
	}
	for _, group := range batch {
		if len(group) == 0 {
			panic("an empty group")
		}
		for _, record := range group {
			if record.Value == nil {
				delete(d.records, string(record.ID))
			} else {
				d.records[string(record.ID)] = bytes.Clone(record.Value)
			}
		}
	}
	if decided.err == nil {
		d.batches = append(d.batches, len(batch))
	}
	return decided.err
}

func (d *disk) Standing() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return d.standing
}

func (d *disk) Close() error { return nil }

// set changes a field of the disk.
func (d *disk) set(change func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// commits returns how many batches were committed.
func (d *disk) commits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.batches)
}

// A durable is an engine on a disk, in a bubble, and what has left it.
type durable struct {
	t       *testing.T
	disk    *disk
	engine  *Engine
	started time.Time
	stop    context.CancelFunc
	ended   chan error
	result  error // of Run, once ended

	mu   sync.Mutex
	left []string
}

// open opens the engine and runs it.
func open(t *testing.T, disk *disk, options statestore.Options) *durable {
	t.Helper()
	d := &durable{t: t, disk: disk, started: time.Now(), ended: make(chan error, 1)}
	engine, err := Open(t.Context(), options, disk, func(n statestore.Notification) {
		if n.Deleted {
			d.leave(n.Client, " hears ", n.Key, " deleted")
		} else {
			d.leave(n.Client, " hears ", n.Key, "=", n.Value)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	engine.Begin()
	d.engine = engine
	ctx, stop := context.WithCancel(t.Context())
	d.stop = stop
	go func() { d.ended <- engine.Run(ctx) }()
	return d
}

// close stops the engine and returns the error of Run. A second call does nothing.
func (d *durable) close() error {
	d.stop()
	if d.ended != nil {
		d.result = await.Receive(d.ended)
		d.ended = nil
	}
	return d.result
}

func (d *durable) leave(text ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = append(d.left, strings.Join(text, ""))
}

// want compares what has left since the last call.
func (d *durable) want(want ...string) {
	d.t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.left, want) {
		d.t.Errorf("what left:\n\t%s\nwant:\n\t%s", strings.Join(d.left, "\n\t"), strings.Join(want, "\n\t"))
	}
	d.left = nil
}

// parse returns the command of a client. Words with a tilde are properties of the request:
// token~5, correlation~x, store~identity, ahead~2m (how far the timestamp is ahead).
func parse(client string, words []string) statestore.Command {
	request := statestore.Request{Client: client}
	stamp := time.Now()
	words = slices.DeleteFunc(slices.Clone(words), func(word string) bool {
		option, value, found := strings.Cut(word, "~")
		if !found {
			return false
		}
		switch option {
		case "token":
			wall, _ := strconv.ParseInt(value, 10, 64)
			token := hlc.Timestamp{Wall: wall, Node: "n"}.String()
			request.FencingToken = &token
		case "correlation":
			request.Correlation = []byte(value)
		case "store":
			request.Store = &value
		case "ahead":
			ahead, _ := time.ParseDuration(value)
			stamp = stamp.Add(ahead)
		}
		return true
	})
	ts := hlc.Timestamp{Wall: stamp.UnixMilli(), Node: client}.String()
	request.Payload, request.Timestamp = resp3.AppendCommand(nil, words...), &ts
	return statestore.Parse(request)
}

// text shows a reply without its version, which a test cannot know.
func text(reply statestore.Reply) string {
	refusals := map[error]string{
		protocol.FencingTokenLower:    "lower token",
		protocol.QuotaExceeded:        "over quota",
		protocol.TimestampTooFarAhead: "timestamp ahead",
		protocol.OtherStore:           "other store",
	}
	switch {
	case reply.Err != nil:
		return cmp.Or(refusals[reply.Err], reply.Err.Error())
	case reply.Outcome == statestore.Found:
		return reply.Value
	}
	return reply.Outcome.String()
}

// submit sends a command. Its reply is added, after the label, to what leaves.
func (d *durable) submit(label string, words ...string) {
	d.submitNow(label, words...)
	synctest.Wait()
}

// submitNow is submit for a caller that must not wait.
func (d *durable) submitNow(label string, words ...string) {
	leave := func(reply statestore.Reply) { d.leave(label, ": ", text(reply)) }
	if reply, now := d.engine.Submit(parse("c", words), leave); now {
		leave(reply)
	}
}

// try is submit for a command whose reply may leave at once. It reports false for any other, which
// changes nothing.
func (d *durable) try(label string, words ...string) bool {
	d.t.Helper()
	waiting := d.engine.Waiting()
	reply, ok := d.engine.TrySubmit(parse("c", words), nil)
	if ok {
		d.leave(label, ": ", text(reply))
	}
	if got := d.engine.Waiting(); got != waiting {
		d.t.Errorf("%s: %d bytes wait for a commit, %d before", label, got, waiting)
	}
	return ok
}

// apply sends a command of a client and waits for the reply.
func (d *durable) apply(client string, words ...string) statestore.Reply {
	d.t.Helper()
	reply, err := d.engine.Apply(parse(client, words))
	if err != nil {
		d.t.Errorf("%q: %v", words, err)
	}
	return reply
}

// hold makes commits wait for commit and fail.
func (d *durable) hold() { d.disk.set(func(k *disk) { k.held = true }) }

// commit lets the commit that is under way pass.
func (d *durable) commit() {
	synctest.Wait()
	d.disk.verdicts <- verdict{}
	synctest.Wait()
}

// release lets all commits pass from now on.
func (d *durable) release() {
	d.disk.set(func(k *disk) { k.held = false })
	synctest.Wait()
	select {
	case d.disk.verdicts <- verdict{}:
	default:
	}
	synctest.Wait()
}

var errDisk = errors.New("the disk is full")

// fail lets the commit that is under way fail after some groups.
func (d *durable) fail(keep int) {
	synctest.Wait()
	d.disk.verdicts <- verdict{keep, errDisk}
	synctest.Wait()
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// Invariant 33: each reply leaves with the commit of what it shows, and at once if that is
// committed. Some keys are committed: "held" (PX 60000), "plain" (no lifetime), "fenced"
// (token 5). While "SET first v" is being committed, the commands of a row come. After the bar
// is when the reply leaves, and what it says: 0 is at once, 1 is with the commit that is under
// way, 2 is with the next one.
func TestInvariant33AReplyLeavesWithTheCommitOfWhatItShows(t *testing.T) {
	long := strings.Repeat("x", 2000)
	rows := []struct {
		name     string
		commands []string
	}{
		{"a read of a key that is being committed", []string{"GET first | 1 v"}},
		{"a read of another key", []string{"GET plain | 0 p"}},
		{"a read of nothing", []string{"GET nothing | 0 missing"}},
		{"a condition on a key that is being committed", []string{"SET first w NX | 1 condition failed"}},
		{"a condition on another key", []string{"SET held w NEX PX 9000 | 0 condition failed"}},
		{"a renewal", []string{"SET held h NEX PX 60000 | 0 ok"}},
		{"a renewal with a shorter lifetime", []string{"SET held h NEX PX 30000 | 0 ok", "SET held h NEX PX 60000 | 0 ok"}},
		{"a longer lifetime", []string{"SET held h NEX PX 60001 | 2 ok"}},
		{"no lifetime any more", []string{"SET held h | 2 ok"}},
		{"a lifetime for a key that had none", []string{"SET plain p PX 60000 | 2 ok"}},
		{"another value", []string{"SET plain q | 2 ok"}},
		{"a higher token", []string{"SET fenced f token~6 | 2 ok"}},
		{"a renewal with the same token", []string{"SET fenced f PX 60000 token~5 | 0 ok"}},
		{"a lower token", []string{"SET fenced f token~4 | 0 lower token"}},
		{"a lower token, after the fence was raised", []string{"SET fenced f token~7 | 2 ok", "SET fenced f token~6 | 2 lower token"}},
		{"a delete", []string{"DEL plain | 2 deleted", "GET plain | 2 missing"}},
		{"a delete of nothing", []string{"DEL nothing | 0 nothing there"}},
		{"a renewal of a key that is being committed", []string{"SET first v NEX PX 1000 | 1 ok"}},
		{"a renewal after a change", []string{"SET held other PX 60000 | 2 ok", "SET held other NEX PX 60000 | 2 ok"}},
		{"a change of a key that is being committed", []string{"SET first w | 2 ok", "GET first | 2 w"}},
		{"a redelivery of a change", []string{"SET plain q correlation~1 | 2 ok", "SET plain q correlation~1 | 2 ok"}},
		{"a timestamp far ahead", []string{"SET held h PX 60000 ahead~2m | 0 timestamp ahead"}},
		{"a request for another store", []string{"GET plain store~other | 0 other store"}},
		{"a request to watch", []string{"KEYNOTIFY plain | 0 ok"}},
		{"over quota, which depends on all keys", []string{"SET plain " + long + " | 1 over quota"}},
		{"over quota after a change", []string{"SET plain q | 2 ok", "SET held " + long + " | 2 over quota"}},
	}
	for i := range 2 * len(rows) {
		row, try := rows[i/2], i%2 == 1
		inBubble(t, fmt.Sprintf("%s, try=%t", row.name, try), func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{MaxBytes: 1000})
			defer d.close()
			d.apply("c", "SET", "held", "h", "PX", "60000")
			d.apply("c", "SET", "plain", "p")
			d.apply("c", "SET", "fenced", "f", "PX", "60000", "token~5")
			d.hold()
			d.submit("first", "SET", "first", "v", "PX", "1000")
			var want [3][]string
			want[1] = append(want[1], "first: ok")
			for _, line := range row.commands {
				command, left, _ := strings.Cut(line, " | ")
				words := strings.Fields(command)
				label := strings.Join(words[:2], " ")
				when, _ := strconv.Atoi(left[:1])
				gone := try && d.try(label, words...)
				if try && gone != (when == 0) {
					t.Errorf("%s may leave at once: %t", command, gone)
				}
				if !gone {
					d.submit(label, words...)
				}
				want[when] = append(want[when], label+":"+left[1:])
			}
			d.want(want[0]...)
			d.commit()
			d.want(want[1]...)
			d.release()
			d.want(want[2]...)
		})
	}
}

// Invariant 33, for notifications: those of a batch leave after its commit, before its replies,
// in the store's order.
func TestInvariant33NotificationsLeaveAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		d.apply("c", "SET", "held", "h", "PX", "60000")
		d.apply("c", "SET", "short", "s", "PX", "1000")
		for _, key := range []string{"a", "b", "held", "short"} {
			d.apply("w", "KEYNOTIFY", key)
		}
		d.hold()
		d.submit("set a", "SET", "a", "1")
		d.want()
		d.submit("set a again", "SET", "a", "2")
		d.submit("set b", "SET", "b", "1")
		d.submit("delete a", "DEL", "a")
		d.want()
		d.submit("renew", "SET", "held", "h", "NEX", "PX", "60000")
		d.want("w hears held=h", "renew: ok")
		wait(time.Second) // short expires
		d.want()
		d.submit("read short", "GET", "short")
		d.want()
		d.commit()
		d.want("w hears a=1", "set a: ok")
		d.release()
		d.want("w hears a=2", "w hears b=1", "w hears a deleted", "w hears short deleted",
			"set a again: ok", "set b: ok", "delete a: deleted", "read short: missing")
	})
}

// A watcher sees the changes of a key in the store's order, also when a renewal of the key
// comes after the commit of a change and before its notification has left.
func TestARenewalDoesNotOvertakeTheNotificationOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		const others = 3 * leaveBatch
		for i := range others {
			d.apply("other", "KEYNOTIFY", strconv.Itoa(i))
		}
		d.apply("w", "KEYNOTIFY", "k")
		d.hold()
		d.submit("", "SET", "first", "v")
		renewed := false
		for i := range others {
			d.engine.Submit(parse("c", []string{"SET", strconv.Itoa(i), "v"}), func(statestore.Reply) {
				if !renewed { // the first reply of the batch has left, and the last notification has not
					renewed = true
					d.leave("renews")
					d.submitNow("renewal", "SET", "k", "new", "PX", "1000")
				}
			})
		}
		d.submit("change", "SET", "k", "new", "PX", "1000")
		d.commit()
		d.want(": ok")
		d.release()
		d.mu.Lock()
		d.left = slices.DeleteFunc(d.left, func(text string) bool { return strings.HasPrefix(text, "other ") })
		d.mu.Unlock()
		d.want("renews", "w hears k=new", "w hears k=new", "change: ok", "renewal: ok")
	})
}

// A notification that waited does not reach a client that has disconnected meanwhile, and
// watches again after that.
func TestNoNotificationReachesTheNextConnection(t *testing.T) {
	for name, disconnect := range map[string]func(*Engine, string){"Disconnect": (*Engine).Disconnect, "EndSession": (*Engine).EndSession} {
		inBubble(t, name, func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			defer d.close()
			d.apply("gone", "KEYNOTIFY", "k")
			d.apply("stays", "KEYNOTIFY", "k")
			d.hold()
			d.submit("first", "SET", "k", "1")
			d.submit("second", "SET", "k", "2")
			disconnect(d.engine, "gone")
			if reply, now := d.engine.Submit(parse("gone", []string{"KEYNOTIFY", "k"}), func(statestore.Reply) {}); now {
				t.Errorf("KEYNOTIFY: %v", reply)
			}
			d.submit("third", "SET", "k", "3")
			d.commit()
			d.want("stays hears k=1", "first: ok")
			d.release()
			d.want("stays hears k=2", "stays hears k=3", "gone hears k=3", "second: ok", "third: ok")
		})
	}
}

// Invariant 34: after a failed commit nothing leaves, and the journal is not used any more,
// whatever part of the batch it kept.
func TestInvariant34AFailedCommitEndsTheStore(t *testing.T) {
	for keep := range 3 {
		inBubble(t, fmt.Sprint("after ", keep, " groups"), func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			d.apply("c", "SET", "held", "h", "PX", "60000")
			d.apply("w", "KEYNOTIFY", "a")
			d.apply("w", "KEYNOTIFY", "held")
			d.hold()
			d.submit("first", "SET", "first", "1")
			d.commit()
			d.want("first: ok")
			d.submit("zero", "SET", "zero", "1")
			d.submit("a", "SET", "a", "1")
			d.submit("b", "SET", "b", "1")
			d.submit("read", "GET", "a")
			var waiter sync.WaitGroup
			waiter.Go(func() {
				if reply, err := d.engine.Apply(parse("c", []string{"SET", "c", "1"})); !errors.Is(err, errDisk) {
					t.Errorf("Apply returned %v, %v", reply, err)
				}
			})
			d.commit()
			d.want("zero: ok")
			d.submit("next", "SET", "d", "1")
			d.fail(keep)
			await.Done(waiter.Wait)
			d.submit("later", "SET", "later", "1")
			d.submit("renewal", "SET", "held", "h", "NEX", "PX", "60000")
			d.submit("read later", "GET", "held")
			wait(time.Hour)
			d.engine.EndSession("c")
			d.want()
			if err := d.engine.Room(t.Context()); err != nil {
				t.Errorf("Room, with room: %v", err)
			}
			if _, err := d.engine.Apply(parse("c", []string{"GET", "held"})); !errors.Is(err, errDisk) {
				t.Errorf("Apply: %v", err)
			}
			if err := d.close(); !errors.Is(err, errDisk) {
				t.Errorf("Run: %v", err)
			}
			d.want()

			d.disk.failed, d.disk.held = false, false
			again := open(t, d.disk, statestore.Options{})
			defer again.close()
			for i, key := range []string{"a", "b", "c", "d", "later"} {
				if kept := again.apply("c", "GET", key).Outcome == statestore.Found; kept != (i < keep) {
					t.Errorf("%s is there: %v", key, kept)
				}
			}
		})
	}
}

var errDeposed = errors.New("another store has taken over")

// Invariant 35: a store with a journal that does not vouch for it answers nothing from memory. What
// a commit proved leaves: the journal was this store's then.
func TestInvariant35NothingLeavesWithoutStanding(t *testing.T) {
	for _, command := range []string{
		"SET held h NEX PX 60000", "SET held other NX PX 60000", "GET held", "GET nothing", "DEL nothing",
		"KEYNOTIFY held", "SET held h PX 1 ahead~2m",
	} {
		inBubble(t, command, func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			d.apply("c", "SET", "held", "h", "PX", "60000")
			d.apply("w", "KEYNOTIFY", "held")
			d.disk.set(func(k *disk) { k.standing = errDeposed })
			d.submit("command", strings.Fields(command)...)
			wait(time.Hour) // the key expires
			d.want()
			if err := d.close(); !errors.Is(err, errDeposed) {
				t.Errorf("Run: %v", err)
			}
			d.submit("later", "GET", "held")
			d.want()
		})
	}
	inBubble(t, "what a commit proved", func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "b", "0")
		d.hold()
		d.submit("begin", "SET", "b", "1") // the next batch waits for this commit
		d.submit("set", "SET", "a", "1")
		d.submit("read", "GET", "a")
		d.commit()
		d.disk.set(func(k *disk) { k.standing, k.asked = errDeposed, 0 })
		d.commit()
		d.want("begin: ok", "set: ok", "read: 1")
		if d.disk.asked != 0 {
			t.Errorf("Standing was asked %d times", d.disk.asked)
		}
		d.submit("read later", "GET", "a")
		d.want()
		if err := d.close(); !errors.Is(err, errDeposed) {
			t.Errorf("Run: %v", err)
		}
	})
	// A journal on a network can have the batch long before Commit returns.
	inBubble(t, "what was read during a commit", func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.hold()
		d.submit("set", "SET", "a", "1")
		d.submit("read", "GET", "a")
		d.disk.set(func(k *disk) { k.standing = errDeposed })
		d.commit()
		d.want("set: ok")
		if err := d.close(); !errors.Is(err, errDeposed) {
			t.Errorf("Run: %v", err)
		}
	})
	inBubble(t, "what has not left when the standing is lost", func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "held", "h")
		d.hold()
		d.submit("first", "SET", "first", "v")
		for i := range 2 * leaveBatch {
			d.engine.Submit(parse("c", []string{"SET", strconv.Itoa(i), "v"}), func(statestore.Reply) {
				d.leave(strconv.Itoa(i))
				d.disk.set(func(k *disk) { k.standing = errDeposed })
				d.submitNow("read", "GET", "held")
			})
		}
		d.commit()
		d.want("first: ok")
		d.commit()
		synctest.Wait()
		if got := len(d.left); got != leaveBatch { // those that were handed over with the first
			t.Errorf("%d replies left; want %d", got, leaveBatch)
		}
		if err := d.close(); !errors.Is(err, errDeposed) {
			t.Errorf("Run: %v", err)
		}
	})
	inBubble(t, "what came after the commit", func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.hold()
		d.engine.Submit(parse("c", []string{"SET", "a", "1"}), func(statestore.Reply) {
			d.leave("set")
			d.disk.set(func(k *disk) { k.standing = errDeposed })
			d.submitNow("read", "GET", "a")
		})
		d.commit()
		d.want("set")
		if err := d.close(); !errors.Is(err, errDeposed) {
			t.Errorf("Run: %v", err)
		}
	})
}

// Invariant 59: leases that are renewed for an hour cost no write but the bound of the
// versions, and no renewal waits. After a crash each has its whole lifetime.
func TestInvariant59RenewalsCostNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		const leases = 20
		for i := range leases {
			d.apply("c", "SET", fmt.Sprint("lease-", i), "holder", "NEX", "PX", "10000")
		}
		d.disk.set(func(k *disk) { k.latency = 50 * time.Millisecond })
		before := d.disk.commits()
		began := time.Now()
		for time.Since(began) < time.Hour {
			asked := time.Now()
			for i := range leases {
				if reply := d.apply("c", "SET", fmt.Sprint("lease-", i), "holder", "NEX", "PX", "10000"); reply.Outcome != statestore.OK {
					t.Fatalf("renewal: %v", reply)
				}
			}
			if took := time.Since(asked); took != 0 {
				t.Fatalf("after %v the renewals took %v", asked.Sub(began), took)
			}
			wait(3 * time.Second)
		}
		if commits := d.disk.commits() - before; commits > int(time.Hour/(20*time.Second))+1 {
			t.Errorf("an hour of renewals made %d commits; want one in 20 s", commits)
		}
		wait(6 * time.Second) // 1 s before the leases end
		d.hold()              // and with no clean end
		d.submit("", "SET", "last", "write")
		d.fail(0)
		if err := d.close(); !errors.Is(err, errDisk) {
			t.Fatal(err)
		}
		d.disk.failed, d.disk.held = false, false
		again := open(t, d.disk, statestore.Options{})
		defer again.close()
		wait(10*time.Second - time.Millisecond)
		if reply := again.apply("c", "SET", "lease-0", "other", "NX", "PX", "10000"); reply.Outcome != statestore.ConditionFailed {
			t.Errorf("before its whole lifetime has passed again, the lease is given to another holder: %v", reply)
		}
		wait(time.Millisecond)
		if reply := again.apply("c", "SET", "lease-0", "other", "NX", "PX", "10000"); reply.Outcome != statestore.OK {
			t.Errorf("after its lifetime the lease is not free: %v", reply)
		}
	})
}

// Requests that come during a commit share the next one.
func TestCommitsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 50
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		d.disk.set(func(k *disk) { k.latency = time.Millisecond })
		run := func(callers int) (commits int, took time.Duration) {
			before, began := d.disk.commits(), time.Now()
			var tasks sync.WaitGroup
			for caller := range callers {
				tasks.Go(func() {
					for i := range requests {
						d.apply(fmt.Sprint(caller), "SET", fmt.Sprint("key-", caller), strconv.Itoa(i+callers))
					}
				})
			}
			await.Done(tasks.Wait)
			return d.disk.commits() - before, time.Since(began)
		}
		commits, alone := run(1)
		if commits != requests {
			t.Errorf("one caller's %d requests took %d commits", requests, commits)
		}
		commits, together := run(64)
		if commits > 2*requests {
			t.Errorf("64 callers, each with %d requests, needed %d commits", requests, commits)
		}
		if together > 3*alone {
			t.Errorf("64 callers took %v, one caller %v", together, alone)
		}
	})
}

// Any number of sessions may end at once. Their records are removed a few at a time: what waits for a
// commit does not grow with them, and requests wait for no more commits than otherwise.
func TestSessionsThatEndAtOnceAreRemovedInSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, window = 100, 256
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "held", "h", "PX", "3600000")
		for i := range clients {
			for j := range window {
				command := parse(fmt.Sprint("client-", i), []string{"SET", strconv.Itoa(i), strconv.Itoa(j), fmt.Sprint("correlation~", j)})
				if err := d.engine.Room(t.Context()); err != nil {
					t.Fatal(err)
				}
				d.engine.Submit(command, func(statestore.Reply) {})
			}
		}
		synctest.Wait()
		records := func() int { return len(d.disk.records) }
		const others = clients + 3 // the keys, held, identity and bound
		if got := records(); got != clients*window+others {
			t.Fatalf("there are %d records", got)
		}
		d.disk.set(func(k *disk) { k.batches = nil })
		d.hold()
		d.submit("first", "SET", "0", "first")
		for i := range clients {
			d.engine.EndSession(fmt.Sprint("client-", i))
		}
		if got := d.engine.waiting.Load(); got > 10_000 {
			t.Errorf("%d bytes wait for a commit", got)
		}
		d.submit("renewal", "SET", "held", "h", "NEX", "PX", "3600000")
		d.submit("second", "SET", "0", "second")
		d.want("renewal: ok")
		d.commit()
		d.want("first: ok")
		if got := d.engine.waiting.Load(); got > 200_000 {
			t.Errorf("%d bytes wait for a commit", got)
		}
		d.commit()
		d.want("second: ok")
		if got := records(); got < clients*window/2 {
			t.Errorf("there are only %d records: this test shows nothing", got)
		}
		d.release()
		if got := records(); got != others {
			t.Errorf("there are %d records; want %d", got, others)
		}
		if most := slices.Max(d.disk.batches); most > 2+(removeBatch+2)/statestore.MaxGroup+1 {
			t.Errorf("a batch had %d groups", most)
		}
		if got := d.engine.Usage().ObsoleteRecords; got != 0 {
			t.Errorf("%d records are obsolete", got)
		}
		before := d.disk.commits()
		wait(50 * time.Minute)
		if got := d.disk.commits(); got != before {
			t.Errorf("an engine at rest made %d commits", got-before)
		}
		d.close()
	})
}

// While clients come, change something and go, their records are removed as fast as they are written,
// though something always waits for a commit.
func TestObsoleteRecordsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		d.disk.set(func(k *disk) { k.latency = time.Millisecond })
		most := 0
		for round := range 20 {
			const clients = 2000
			for i := range clients {
				client := fmt.Sprint("client-", round, "-", i)
				d.engine.Submit(parse(client, []string{"SET", strconv.Itoa(i), client, "correlation~1"}), func(statestore.Reply) {})
				d.engine.EndSession(client)
			}
			wait(time.Millisecond)
			most = max(most, d.engine.Usage().ObsoleteRecords)
			if got := most; got > 3*clients {
				t.Fatalf("in round %d %d records are obsolete", round, got)
			}
		}
	})
}

// A stop does not wait until all obsolete records are removed, nor does a crash lose them: the next
// store knows the sessions, and ends them again.
func TestObsoleteRecordsSurviveAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 4 * removeBatch
		options := statestore.Options{DedupWindow: window}
		d := open(t, newDisk(), options)
		for i := range window {
			d.apply("gone", "SET", "k", strconv.Itoa(i), fmt.Sprint("correlation~", i))
		}
		d.hold()
		d.submit("first", "SET", "l", "v")
		d.engine.EndSession("gone")
		d.submit("comes back", "SET", "l", "w")
		reply, _ := d.engine.Submit(parse("gone", []string{"SET", "k", "new", "correlation~new"}), func(statestore.Reply) {})
		d.commit()
		d.stop()
		synctest.Wait()
		d.release()
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
		again := open(t, d.disk, options)
		defer again.close()
		if got := again.apply("gone", "SET", "k", "new", "correlation~new"); got != reply {
			t.Errorf("the second session's request again: %v; want %v", got, reply)
		}
		if got := again.engine.RestoredClients(); !slices.Equal(got, []string{"gone"}) {
			t.Errorf("the restored clients are %q", got)
		}
		synctest.Wait()
		if got := again.engine.Usage(); got.ObsoleteRecords != 0 || got.DedupEntries != 1 || len(d.disk.records) != 5 {
			t.Errorf("there are %d records, %+v", len(d.disk.records), got)
		}
	})
}

// Reads of a key whose change has just been committed wait until the change was notified. However many
// come meanwhile, the next commit begins soon.
func TestReadsDoNotHoldUpTheNextCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		const most = 1000
		pauses := 0
		d.engine.BetweenDeliveries(func() {
			if pauses++; pauses == most {
				t.Error("reads hold up the next commit for ever")
			} else if pauses < most {
				for range 2 * leaveBatch {
					d.engine.Submit(parse("c", []string{"GET", "hot"}), func(statestore.Reply) {})
				}
			}
		})
		d.hold()
		d.submit("first", "SET", "hot", "v")
		d.submit("second", "SET", "other", "v")
		d.commit()
		d.commit()
		d.want("first: ok", "second: ok")
	})
}

// The engine remembers a client that has disconnected only while a notification for it waits. Any
// number of others may come and go during a slow commit.
func TestClientsThatComeAndGoDuringACommitLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		d.apply("w", "KEYNOTIFY", "k")
		d.hold()
		d.submit("first", "SET", "k", "1")
		d.submit("second", "SET", "k", "2")
		for i := range 1000 {
			d.engine.Disconnect(fmt.Sprint("passing-", i))
		}
		for _, b := range []*batch{d.engine.committing, d.engine.open} {
			if got := slices.Collect(maps.Keys(b.notified)); !slices.Equal(got, []string{"w"}) {
				t.Errorf("a batch remembers %d clients", len(got))
			}
		}
		d.release()
		d.want("w hears k=1", "first: ok", "w hears k=2", "second: ok")
	})
}

// The bound of the versions is reserved ahead, so renewals are answered for nearly ten seconds at least
// while a disk stands still: ten seconds after the request before it. A version above the bound that
// is durable never leaves: after that they wait.
func TestRenewalsOutlastADiskThatStandsStillForTenSeconds(t *testing.T) {
	for rest := range 25 { // seconds since the bound was moved
		inBubble(t, fmt.Sprint(rest, " s"), func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			defer d.close()
			d.apply("c", "SET", "held", "h", "PX", "600000")
			renew := func() { d.submit("renewal", "SET", "held", "h", "NEX", "PX", "600000") }
			for range rest {
				renew()
				d.want("renewal: ok")
				wait(time.Second)
			}
			d.hold()
			d.submit("change", "SET", "k", "v")
			for range 9 {
				renew()
				d.want("renewal: ok")
				wait(time.Second)
			}
			wait(21 * time.Second)
			renew()
			d.want()
			d.commit()
			d.want("change: ok")
			d.commit()
			d.want("renewal: ok")
		})
	}
}

// Many clients may watch many keys that expire at once. The engine releases its lock, and lets the
// goroutines run that write, again and again while the notifications leave.
func TestNotificationsOfKeysThatExpireLeaveInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, watchers = 20, 100
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		var parts atomic.Int64
		d.engine.BetweenDeliveries(func() { parts.Add(1) })
		for i := range keys {
			d.apply("c", "SET", strconv.Itoa(i), "v", "PX", "1000")
			for j := range watchers {
				d.apply(fmt.Sprint("watcher-", j), "KEYNOTIFY", strconv.Itoa(i))
			}
		}
		synctest.Wait()
		parts.Store(0)
		wait(2 * time.Second)
		synctest.Wait()
		if len(d.left) != keys*watchers {
			t.Errorf("%d notifications left", len(d.left))
		}
		if got := parts.Load(); got < keys*watchers/leaveBatch {
			t.Errorf("they left in %d parts", got)
		}
	})
}
