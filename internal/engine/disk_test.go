package engine

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// A verdict is what a held commit does: it keeps the first groups and fails, or keeps all.
type verdict struct {
	keep int
	err  error
}

// A disk is a journal in memory. While it is held each commit waits for the test.
type disk struct {
	verdicts chan verdict

	mu       sync.Mutex
	records  map[string][]byte
	batches  []int // how many groups each committed batch had
	held     bool
	latency  time.Duration
	standing error
	idle     time.Duration // what Load returns
	asked    int           // how often Standing was called
	during   bool          // a commit is under way
	failed   bool          // and must not be used any more

	loading, committing error // of each Load, and of each Commit
}

func newDisk() *disk {
	return &disk{verdicts: make(chan verdict), records: make(map[string][]byte)}
}

func (d *disk) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	if d.loading != nil {
		return former, d.loading
	}
	d.mu.Lock()
	records := maps.Clone(d.records)
	d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(records)) {
		if err := each(statestore.Record{ID: []byte(id), Value: bytes.Clone(records[id])}); err != nil {
			return former, err
		}
	}
	return statestore.Former{Idle: d.idle}, nil
}

func (d *disk) Commit(ctx context.Context, batch []statestore.Group) error {
	if d.committing != nil {
		return d.committing
	}
	d.mu.Lock()
	if d.during || d.failed || len(batch) == 0 {
		panic("two commits at once, an empty one, or one after a failure")
	}
	d.during = true
	held, latency := d.held, d.latency
	d.mu.Unlock()
	decided := verdict{}
	if held {
		select {
		case decided = <-d.verdicts:
		case <-ctx.Done():
			decided = verdict{err: context.Cause(ctx)}
		}
	}
	time.Sleep(latency)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.during = false
	if decided.err != nil {
		batch = batch[:min(decided.keep, len(batch))]
		d.failed = true
	}
	for _, group := range batch {
		if len(group) == 0 {
			panic("an empty group")
		}
		for _, record := range group {
			if record.Value == nil {
				delete(d.records, string(record.ID))
			} else {
				d.records[string(record.ID)] = bytes.Clone(record.Value)
			}
		}
	}
	if decided.err == nil {
		d.batches = append(d.batches, len(batch))
	}
	return decided.err
}

func (d *disk) Standing() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return d.standing
}

func (d *disk) Close() error { return nil }

// set changes a field of the disk.
func (d *disk) set(change func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// commits returns how many batches were committed.
func (d *disk) commits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.batches)
}

var errDisk = errors.New("the disk is full")
