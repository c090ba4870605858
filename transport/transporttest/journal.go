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

// CutOff makes the commits of the present store hang, as if its disk or etcd did not answer, until
// Store.Crash, or until another store opens the journal. Meanwhile the store answers what rests on
// no commit. A store that is started later is not cut off.
func (j *Journal) CutOff() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.current != nil {
		j.current.cutOff = true
	}
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
	cutOff  bool
	keep    int // how many groups of the last commit become durable; not after the first failure
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

// Commit implements statestore.Journal.
func (m *mount) Commit(ctx context.Context, batch []statestore.Group) error {
	j := m.journal
	j.mu.Lock()
	latency, cutOff := j.latency, m.cutOff
	j.mu.Unlock()
	var done <-chan time.Time // never, while it is cut off
	if !cutOff && latency > 0 {
		timer := time.NewTimer(latency)
		defer timer.Stop()
		done = timer.C
	}
	if cutOff || latency > 0 {
		select {
		case <-done:
		case <-m.failed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
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
