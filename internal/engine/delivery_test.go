package engine

import (
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
		for i := range others {
			d.engine.Submit(parse("c", []string{"SET", strconv.Itoa(i), "v"}), nil)
		}
		d.submit("change", "SET", "k", "new", "PX", "1000")
		d.commit()
		d.want(": ok")
		renew := sync.OnceFunc(func() { // the first part of the batch has left, and the last has not
			d.leave("renews")
			d.submitNow("renewal", "SET", "k", "new", "PX", "1000")
		})
		d.engine.BetweenDeliveries(renew)
		d.release()
		d.mu.Lock()
		d.left = slices.DeleteFunc(d.left, func(text string) bool { return strings.HasPrefix(text, "other ") })
		d.mu.Unlock()
		d.want("renews", "change: ok", "w hears k=new", "renewal: ok", "w hears k=new")
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
			d.want("first: ok", "stays hears k=1")
			d.release()
			d.want("second: ok", "stays hears k=2", "third: ok", "stays hears k=3", "gone hears k=3")
		})
	}
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
		if got := parts.Load(); got < keys*watchers/leaveBatch {
			t.Errorf("they left in %d parts", got)
		}
	})
}
