package server

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/quota"
)

// postOf returns a post that lets one write at a time, and outboxes of it that write so.
func postOf(writes ...func()) (*writeLimiter, []*outbox) {
	p := &writeLimiter{normal: 1, allowed: 1}
	outboxes := make([]*outbox, len(writes))
	for i, write := range writes {
		outboxes[i] = newOutbox(1<<20, quota.New(1<<30), p)
		outboxes[i].begin(write)
	}
	return p, outboxes
}

func TestOutboxesWriteOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, written int
		var mu sync.Mutex
		writes := make([]func(), 50)
		for i := range writes {
			writes[i] = func() {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(stuckAfter / 20)
				mu.Lock()
				now--
				written++
				mu.Unlock()
			}
		}
		_, outboxes := postOf(writes...)
		for _, o := range outboxes {
			o.Wake()
		}
		for _, o := range outboxes[1:] {
			o.Wake() // before it was let write: once is enough
		}
		time.Sleep(time.Minute)
		for _, o := range outboxes {
			o.close()
		}
		if written != len(writes) || most != 1 {
			t.Errorf("%d of %d were written, up to %d at a time", written, len(writes), most)
		}
	})
}

func TestAnOutboxThatIsWokenWhileItWritesWritesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int32
		_, outboxes := postOf(func() {
			time.Sleep(time.Millisecond)
			written.Add(1)
		})
		outboxes[0].Wake()
		synctest.Wait()
		outboxes[0].Wake()
		outboxes[0].Wake()
		time.Sleep(time.Minute)
		outboxes[0].close()
		if got := written.Load(); got != 2 {
			t.Errorf("it wrote %d times", got)
		}
	})
}

// A thousand that wait for their clients cost others some tens of milliseconds, not ten each.
func TestWritesThatAreStuckHoldUpOthersForMomentsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 500
		release := make(chan struct{})
		var reached sync.WaitGroup
		var writes []func()
		for range each {
			reached.Add(1)
			writes = append(writes, func() { _, _ = await.Next(release) }, func() { reached.Done() })
		}
		began := time.Now()
		p, outboxes := postOf(writes...)
		for _, o := range outboxes {
			o.Wake()
		}
		await.Done(reached.Wait)
		if took := time.Since(began); took > 30*stuckAfter {
			t.Errorf("the last one that could write waited %v", took)
		}
		close(release)
		for _, o := range outboxes {
			o.close()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.writing != 0 || len(p.waiting) != 0 {
			t.Errorf("%d write, and %d wait", p.writing, len(p.waiting))
		}
	})
}

func TestAnOutboxThatIsClosedWhileItWaitsHoldsUpNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var written atomic.Bool
		p, outboxes := postOf(func() { _, _ = await.Next(release) }, func() {}, func() { written.Store(true) })
		for _, o := range outboxes {
			o.Wake()
		}
		outboxes[1].close()
		close(release)
		synctest.Wait()
		if !written.Load() {
			t.Error("the next one has not written")
		}
		for _, o := range []*outbox{outboxes[0], outboxes[2]} {
			o.close()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.writing != 0 {
			t.Errorf("%d are still taken to write", p.writing)
		}
	})
}
