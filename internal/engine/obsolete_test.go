package engine

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// Any number of sessions may end at once. Their records are removed a few at a time: what waits for a
// commit does not grow with them, and requests wait for no more commits than otherwise.
func TestSessionsThatEndAtOnceAreRemovedInSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, window = 100, 256
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		d.apply("c", "SET", "held", "h", "PX", "3600000")
		for i := range clients {
			for j := range window {
				d.engine.Submit(parse(fmt.Sprint("client-", i), []string{"SET", strconv.Itoa(i), strconv.Itoa(j), fmt.Sprint("correlation~", j)}), nil)
			}
			synctest.Wait()
		}
		const others = clients + 3 // the keys, held, identity and bound
		records := func(least, most int) {
			t.Helper()
			if got := len(d.disk.records); got < least || got > most {
				t.Errorf("there are %d records, want %d to %d", got, least, most)
			}
			if got := d.engine.waiting.Load(); got > 200_000 {
				t.Errorf("%d bytes wait for a commit", got)
			}
		}
		records(clients*window+others, clients*window+others)
		d.disk.set(func(k *disk) { k.batches = nil })
		d.hold()
		d.submit("first", "SET", "0", "first")
		for i := range clients {
			d.engine.EndSession(fmt.Sprint("client-", i))
		}
		d.submit("renewal", "SET", "held", "h", "NEX", "PX", "3600000")
		d.submit("second", "SET", "0", "second")
		d.want("renewal: ok")
		d.commit()
		d.want("first: ok")
		d.commit()
		d.want("second: ok")
		records(clients*window/2, clients*window)
		d.release()
		records(others, others)
		if most := slices.Max(d.disk.batches); most > 2+(removeBatch+2)/statestore.MaxGroup+1 {
			t.Errorf("a batch had %d groups", most)
		}
		before := d.disk.commits()
		wait(50 * time.Minute)
		if got := d.disk.commits(); got != before || d.engine.Usage().ObsoleteRecords != 0 {
			t.Errorf("an engine at rest made %d commits, and %d records are obsolete", got-before, d.engine.Usage().ObsoleteRecords)
		}
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
