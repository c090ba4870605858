package testsupport

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// Journal is a journal in memory whose commits a test can hold up.
type Journal struct {
	transporttest.Journal

	held            atomic.Pointer[chan struct{}] // closed when commits may go on; nil: they may
	begun, underway atomic.Int64                  // commits
}

// Hold makes each commit that begins from now on wait until release is called.
func (j *Journal) Hold() (release func()) {
	held := make(chan struct{})
	j.held.Store(&held)
	return sync.OnceFunc(func() {
		j.held.Store(nil)
		close(held)
	})
}

// MustBeCommitting waits until a commit is under way.
func (j *Journal) MustBeCommitting(t testing.TB) {
	t.Helper()
	Eventually(t, "a commit begins", func() bool { return j.underway.Load() > 0 })
}

// Attempts returns how many commits have begun.
func (j *Journal) Attempts() int { return int(j.begun.Load()) }

// Open returns the journal for a store.
func (j *Journal) Open() statestore.Journal { return &opened{Journal: j.Journal.Open(), journal: j} }

type opened struct {
	statestore.Journal
	journal *Journal
}

// Commit implements statestore.Journal.
func (o *opened) Commit(ctx context.Context, batch []statestore.Group) error {
	held := o.journal.held.Load()
	o.journal.begun.Add(1)
	o.journal.underway.Add(1)
	defer o.journal.underway.Add(-1)
	if held != nil {
		select {
		case <-*held:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return o.Journal.Commit(ctx, batch)
}
