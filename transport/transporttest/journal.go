package transporttest

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// Journal is the disk of a durable Store: it outlives the store, in memory. The zero value is
// empty and ready for use. It is safe for concurrent use.
//
// The store that was opened on it last may write: an earlier one can neither commit nor
// answer from then on, like the deposed one of several stores.
type Journal struct {
	mu      sync.Mutex
	records map[string][]byte
	current *mount // nil at first
	latency time.Duration

	begun, underway int // commits
}

var (
	errCrashed   = errors.New("transporttest: the store crashed")
	errFullDisk  = errors.New("transporttest: the test made the commit fail")
	errTakenOver = errors.New("transporttest: another store has opened the journal")
)

func (j *Journal) locked(do func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	do()
}

// SetLatency makes each commit take d from now on; 0, the default, is no time at all.
func (j *Journal) SetLatency(d time.Duration) { j.locked(func() { j.latency = d }) }

// Fail makes the commit that is under way, or else the next one, fail after its first keep
// groups are durable, as a disk that is full does. The store then ends as with Store.Crash.
func (j *Journal) Fail(keep int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.current != nil {
		j.current.failLocked(errFullDisk, keep)
	}
}

// Hold makes each commit of the present store that begins from now on wait, as if its disk or etcd did not
// answer, until release is called, the store crashes, or another store opens the journal. Meanwhile
// the store answers what rests on no commit. A store that is started later is not held. A store must have
// opened the journal.
func (j *Journal) Hold() (release func()) {
	held := make(chan struct{})
	j.locked(func() { j.current.held = held })
	return sync.OnceFunc(func() { close(held) })
}

// Commits returns how many commits have begun.
func (j *Journal) Commits() (begun int) {
	j.locked(func() { begun = j.begun })
	return begun
}

// Committing reports whether a commit is under way.
func (j *Journal) Committing() (yes bool) {
	j.locked(func() { yes = j.underway > 0 })
	return yes
}

// Records returns what is durable now, in the order of the identifiers. statestore.Record.Decode
// says what it means.
func (j *Journal) Records() iter.Seq[statestore.Record] {
	j.mu.Lock()
	defer j.mu.Unlock()
	records := make([]statestore.Record, 0, len(j.records))
	for id, value := range j.records {
		records = append(records, statestore.Record{ID: []byte(id), Value: bytes.Clone(value)})
	}
	slices.SortFunc(records, func(x, y statestore.Record) int { return bytes.Compare(x.ID, y.ID) })
	return slices.Values(records)
}

// Erase drops all records, like the loss of the disk. No store may be running on the journal.
func (j *Journal) Erase() { j.locked(func() { j.records = nil }) }

// Open returns the journal for a store of another kind, such as server.Options.Journal. It
// deposes the store that has opened it before.
func (j *Journal) Open() statestore.Journal { return j.open() }

// open returns the journal for a new store, and deposes the earlier one.
func (j *Journal) open() *mount {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.current != nil {
		j.current.failLocked(errTakenOver, 0)
	}
	j.current = &mount{journal: j, failed: make(chan struct{})}
	return j.current
}

// mount is a Journal as one store has it. It implements statestore.Journal.
type mount struct {
	journal *Journal
	failed  chan struct{} // closed with failure

	// Guarded by journal.mu.
	failure error
	held    chan struct{} // closed when commits may go on; nil: they may
	keep    int           // how many groups of the last commit become durable; not after the first failure
}

// failLocked makes all commits fail from now on, the first of them after keep groups.
func (m *mount) failLocked(cause error, keep int) {
	if m.failure == nil {
		m.failure, m.keep = cause, keep
		close(m.failed)
	}
}

func (m *mount) crash(keep int) {
	m.journal.mu.Lock()
	defer m.journal.mu.Unlock()
	m.failLocked(errCrashed, keep)
}

// Load implements statestore.Journal.
func (m *mount) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	for record := range m.journal.Records() {
		if err := each(record); err != nil {
			return former, err
		}
	}
	return former, context.Cause(ctx)
}

// wait waits for what delays a commit, or until the store has failed. The error is the end of ctx.
func (m *mount) wait(ctx context.Context, latency time.Duration, held <-chan struct{}) error {
	var due <-chan time.Time // nil: at once
	if latency > 0 {
		timer := time.NewTimer(latency)
		defer timer.Stop()
		due = timer.C
	}
	for due != nil || held != nil {
		select {
		case <-due:
			due = nil
		case <-held:
			held = nil
		case <-m.failed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Commit implements statestore.Journal.
func (m *mount) Commit(ctx context.Context, batch []statestore.Group) error {
	j := m.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	j.begun++
	j.underway++
	defer func() { j.underway-- }()
	latency, held := j.latency, m.held
	j.mu.Unlock()
	err := m.wait(ctx, latency, held)
	j.mu.Lock()
	if err != nil {
		return err
	}
	if m.failure != nil {
		batch = batch[:min(m.keep, len(batch))]
		m.keep = 0
	}
	if j.records == nil {
		j.records = make(map[string][]byte)
	}
	for _, group := range batch {
		for _, record := range group {
			if record.Value == nil {
				delete(j.records, string(record.ID))
			} else {
				j.records[string(record.ID)] = bytes.Clone(record.Value)
			}
		}
	}
	return m.failure
}

// Standing implements statestore.Journal.
func (m *mount) Standing() error {
	m.journal.mu.Lock()
	defer m.journal.mu.Unlock()
	if m.failure == errTakenOver {
		return m.failure
	}
	return nil
}

// Close implements statestore.Journal. The records stay.
func (m *mount) Close() error { return nil }
