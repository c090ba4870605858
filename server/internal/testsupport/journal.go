package testsupport

import (
	"context"
	"sync"
	"testing"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// Journal is a journal in memory whose commits a test can hold up.
type Journal struct {
	transporttest.Journal

	mu       sync.Mutex
	held     chan struct{} // closed when commits may go on; nil: they may
	under    int           // commits under way
	attempts int           // commits that have begun
}

// Hold makes each commit that begins from now on wait until release is called.
func (j *Journal) Hold() (release func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	held := make(chan struct{})
	j.held = held
	return sync.OnceFunc(func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.held = nil
		close(held)
	})
}

// MustBeCommitting waits until a commit is under way.
func (j *Journal) MustBeCommitting(t testing.TB) {
	t.Helper()
	Eventually(t, "a commit begins", func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.under > 0
	})
}

// Attempts returns how many commits have begun.
func (j *Journal) Attempts() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.attempts
}

// Open returns the journal for a store.
func (j *Journal) Open() statestore.Journal { return &opened{Journal: j.Journal.Open(), journal: j} }

type opened struct {
	statestore.Journal
	journal *Journal
}

// Commit implements statestore.Journal.
func (o *opened) Commit(ctx context.Context, batch []statestore.Group) error {
	held := o.journal.begin()
	defer o.journal.end()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return o.Journal.Commit(ctx, batch)
}

func (j *Journal) begin() (held chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.under++
	j.attempts++
	return j.held
}

func (j *Journal) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.under--
}
