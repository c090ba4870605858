package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			d.hold()
			d.submit("first", "SET", "first", "1")
			d.submit("a", "SET", "a", "1")
			d.submit("b", "SET", "b", "1")
			d.submit("read", "GET", "a")
			d.commit()
			d.want("first: ok")
			d.submit("next", "SET", "c", "1")
			d.fail(keep)
			d.submit("later", "SET", "later", "1")
			d.submit("renewal", "SET", "held", "h", "NEX", "PX", "60000")
			d.submit("read later", "GET", "held")
			wait(time.Hour)
			d.engine.EndSession("c")
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
			for i, key := range []string{"a", "b", "c", "later"} {
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
	without := func(name string, test func(d *durable, depose func())) {
		inBubble(t, name, func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			d.apply("c", "SET", "held", "h", "PX", "60000")
			test(d, func() { d.disk.set(func(k *disk) { k.standing, k.asked = errDeposed, 0 }) })
			if err := d.close(); !errors.Is(err, errDeposed) {
				t.Errorf("Run: %v", err)
			}
			d.submit("later", "GET", "held")
			d.want()
		})
	}
	for _, command := range []string{"SET held h NEX PX 60000", "SET held other NX PX 60000", "GET nothing", "KEYNOTIFY held", "SET held h PX 1 ahead~2m"} {
		without(command, func(d *durable, depose func()) {
			d.apply("w", "KEYNOTIFY", "held")
			depose()
			d.submit("command", strings.Fields(command)...)
			wait(time.Hour) // the key expires
			d.want()
		})
	}
	without("what has not left when the standing is lost", func(d *durable, depose func()) {
		d.hold()
		d.submit("first", "SET", "first", "v")
		for i := range 2 * sendBatch {
			d.submitNow(strconv.Itoa(i), "SET", strconv.Itoa(i), "v")
		}
		d.commit()
		d.want("first: ok")
		d.engine.BetweenDeliveries(func() {
			depose()
			d.submitNow("read", "GET", "held")
		})
		d.commit()
		synctest.Wait()
		if got := len(d.left); got != sendBatch { // those that left with the first
			t.Errorf("%d replies left; want %d", got, sendBatch)
		}
		d.left = nil
	})
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
		{"the load fails", statestore.Options{}, &disk{loading: errDisk}, "load the journal: " + errDisk.Error()},
		{"the first commit fails", statestore.Options{}, &disk{committing: errDisk}, "commit the first batch: " + errDisk.Error()},
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
