package engine

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// Invariant 59: the clock of one client, however far ahead, makes no renewal write, and none wait
// for a disk that stands still: neither its own renewals nor those of others.
func TestInvariant59NoClockOfAClientMakesARenewalWriteOrWait(t *testing.T) {
	for _, ahead := range []string{"0s", "12s", "29s", "35s", "45s", "60s"} {
		inBubble(t, ahead, func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			defer d.close()
			leases := [][]string{{"a", "SET", "lease-a", "a:1", "NEX", "PX", "10000"}, {"b", "SET", "lease-b", "b:1", "NEX", "PX", "10000", "ahead~" + ahead}}
			versions := make(map[string]hlc.Timestamp)
			renew := func() {
				t.Helper()
				asked := time.Now()
				for _, words := range leases {
					reply := d.apply(words[0], words[1:]...)
					if reply.Outcome != statestore.OK || reply.Version.Compare(versions[words[0]]) <= 0 {
						t.Fatalf("a renewal by %s: %v, after version %v", words[0], reply, versions[words[0]])
					}
					versions[words[0]] = reply.Version
				}
				if took := time.Since(asked); took > 0 {
					t.Fatalf("the renewals took %v", took)
				}
			}
			renew()
			before := d.disk.commits()
			for range 600 { // a minute
				wait(100 * time.Millisecond)
				renew()
				if now := time.Now().UnixMilli(); versions["a"].Wall < now {
					t.Fatalf("after %v a renewal has version %v, which is behind the time of day, %d", time.Since(d.started), versions["a"], now)
				}
			}
			if commits := d.disk.commits() - before; commits > 4 {
				t.Errorf("a minute of renewals made %d commits; want one in 20 s", commits)
			}
			d.disk.set(func(k *disk) { k.latency = 9 * time.Second })
			for i := range 600 {
				wait(100 * time.Millisecond)
				d.submitNow("change", "SET", "key", strconv.Itoa(i), "ahead~"+ahead)
				renew()
			}
			d.hold() // it stands still for longer than any version was reserved for
			for range 600 {
				wait(100 * time.Millisecond)
				renew()
			}
			d.release()
			wait(time.Minute)
			d.disk.set(func(k *disk) { k.latency = 0 })
			if reply := d.apply("c", "SET", "lease-b", "c:1"); reply.Version.Compare(versions["a"]) <= 0 || reply.Version.Compare(versions["b"]) <= 0 {
				t.Errorf("a change has version %v, after %v", reply.Version, versions)
			}
		})
	}
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
				for range 2 * sendBatch {
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
