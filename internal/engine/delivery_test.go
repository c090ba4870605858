package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// Invariant 33, for notifications: they leave after the commit of their batch, in the store's order, each
// behind the reply to the request that caused it.
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
		d.want("renew: ok", "w hears held=h")
		wait(time.Second) // short expires
		d.want()
		d.submit("read short", "GET", "short")
		d.want()
		d.commit()
		d.want("set a: ok", "w hears a=1")
		d.release()
		d.want("set a again: ok", "w hears a=2", "set b: ok", "w hears b=1", "delete a: deleted", "w hears a deleted",
			"read short: missing", "w hears short deleted")
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
		d.want("first: ok", "w hears k=1", "second: ok", "w hears k=2")
	})
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
		if got := parts.Load(); got < keys*watchers/sendBatch {
			t.Errorf("they left in %d parts", got)
		}
	})
}
