package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

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
			d.submitNow(strconv.Itoa(i), "SET", strconv.Itoa(i), "v")
		}
		d.commit()
		d.want("first: ok")
		d.engine.BetweenDeliveries(func() {
			d.disk.set(func(k *disk) { k.standing = errDeposed })
			d.submitNow("read", "GET", "held")
		})
		d.commit()
		synctest.Wait()
		if got := len(d.left); got != leaveBatch { // those that left with the first
			t.Errorf("%d replies left; want %d", got, leaveBatch)
		}
		if err := d.close(); !errors.Is(err, errDeposed) {
			t.Errorf("Run: %v", err)
		}
	})
	inBubble(t, "what came after the commit", func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.hold()
		d.submit("set", "SET", "a", "1")
		d.engine.BetweenDeliveries(func() {
			d.disk.set(func(k *disk) { k.standing = errDeposed })
			d.submitNow("read", "GET", "a")
		})
		d.commit()
		d.want("set: ok")
		if err := d.close(); !errors.Is(err, errDeposed) {
			t.Errorf("Run: %v", err)
		}
	})
}

// brokenJournal fails at the start.
type brokenJournal struct {
	*disk
	load, commit error
}

func (b *brokenJournal) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	if b.load != nil {
		return former, b.load
	}
	return b.disk.Load(ctx, each)
}

func (b *brokenJournal) Commit(ctx context.Context, batch []statestore.Group) error {
	if b.commit != nil {
		return b.commit
	}
	return b.disk.Commit(ctx, batch)
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	foreign := newDisk()
	foreign.records["foreign"] = []byte("bytes")
	tests := []struct {
		name    string
		options statestore.Options
		journal statestore.Journal
		want    string
	}{
		{"an option", statestore.Options{MaxKeys: -1}, newDisk(), "negative"},
		{"the load fails", statestore.Options{}, &brokenJournal{disk: newDisk(), load: errDisk}, "load the journal: " + errDisk.Error()},
		{"the first commit fails", statestore.Options{}, &brokenJournal{disk: newDisk(), commit: errDisk}, "commit the first batch: " + errDisk.Error()},
		{"a foreign record", statestore.Options{}, foreign, "load the journal: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Open(t.Context(), test.options, test.journal, func(statestore.Notification) {})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want %q", err, test.want)
			}
		})
	}
}
