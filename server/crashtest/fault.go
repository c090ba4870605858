package crashtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/statestore"
)

// Fault is a mistake that a store could make. Run must find each of them; a check that was
// never seen to fail proves nothing.
type Fault string

// The faults that can be built into a journal.
const (
	// None is no fault.
	None Fault = ""
	// ReplyBeforeCommit: replies leave before the commit.
	ReplyBeforeCommit Fault = "reply before commit"
	// LostBatch: some batches are not committed.
	LostBatch Fault = "lost batch"
	// LifetimeNotGivenBack: a restart does not give keys their whole lifetime again.
	LifetimeNotGivenBack Fault = "lifetime not given back"
	// BoundNotReserved: the bound of the versions does not move ahead of them.
	BoundNotReserved Fault = "version bound not reserved"
	// TornGroup: a crash can keep a part of a group.
	TornGroup Fault = "torn group"
	// ReplyForgotten: the remembered replies are not kept.
	ReplyForgotten Fault = "remembered reply not kept"
	// FenceForgotten: the fence of a key is not kept.
	FenceForgotten Fault = "fence not kept"
	// IdentityForgotten: each start takes a new identity.
	IdentityForgotten Fault = "identity not kept"
)

// Faults returns all faults but None.
func Faults() []Fault {
	return []Fault{
		ReplyBeforeCommit, LostBatch, LifetimeNotGivenBack, BoundNotReserved, TornGroup,
		ReplyForgotten, FenceForgotten, IdentityForgotten,
	}
}

const (
	// lateness is by how much a commit comes late, or the second half of a torn group.
	lateness = 30 * time.Millisecond
	// One of losses batches is lost.
	losses = 10
)

// withFault returns a journal with a fault. Its Close waits for what it still commits, and does not
// close the journal.
func withFault(journal statestore.Journal, fault Fault) statestore.Journal {
	b := &broken{Journal: journal}
	switch fault {
	case None:
		return journal
	case ReplyBeforeCommit:
		return &early{Journal: journal}
	case LostBatch:
		commits, lost := 0, false
		b.begin = func() { commits++; lost = commits%losses == 0 }
		// A store refuses to start if the bound is missing, so the bound is kept.
		b.keep = func(item statestore.Item) bool {
			return !lost || item.Kind == statestore.KindBound || item.Kind == statestore.KindIdentity
		}
	case LifetimeNotGivenBack:
		b.load = func(item *statestore.Item) bool {
			if item.Lifetime > 0 {
				item.Lifetime = time.Millisecond
			}
			return true
		}
	case BoundNotReserved:
		// It is not ahead of the versions that the records have.
		bound, empty := hlc.Timestamp{Wall: 1}, true
		b.load = func(item *statestore.Item) bool {
			empty = false
			if item.Kind == statestore.KindKey && item.Version.Compare(bound) > 0 {
				bound = item.Version
			}
			return item.Kind != statestore.KindBound
		}
		b.loaded = func(each func(statestore.Record) error) error {
			if empty {
				return nil
			}
			bound.Node = ""
			return each(statestore.Item{Kind: statestore.KindBound, Version: bound}.Record())
		}
	case TornGroup:
		return &torn{Journal: journal}
	case ReplyForgotten:
		b.keep = func(item statestore.Item) bool { return item.Kind != statestore.KindReply }
	case FenceForgotten:
		b.load = func(item *statestore.Item) bool {
			item.Token = statestore.Item{}.Token
			return item.Kind != statestore.KindFence
		}
	case IdentityForgotten:
		b.load = func(item *statestore.Item) bool {
			if item.Kind == statestore.KindIdentity {
				item.Identity = rand.Text()
			}
			return true
		}
	default:
		panic(fmt.Sprintf("crashtest: no such fault: %q", fault))
	}
	return b
}

// broken changes what a journal keeps, or what it gives back.
type broken struct {
	statestore.Journal
	begin  func()                                         // begins a commit; may be nil
	keep   func(statestore.Item) bool                     // nil: everything
	load   func(*statestore.Item) bool                    // reports whether there is such a record; nil: all
	loaded func(each func(statestore.Record) error) error // adds records; may be nil
}

func (b *broken) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	if b.load == nil {
		return b.Journal.Load(ctx, each)
	}
	former, err = b.Journal.Load(ctx, func(record statestore.Record) error {
		item, err := record.Decode()
		if err != nil {
			return err
		}
		if !b.load(&item) {
			return nil
		}
		return each(item.Record())
	})
	if err == nil && b.loaded != nil {
		err = b.loaded(each)
	}
	return former, err
}

func (b *broken) Commit(ctx context.Context, batch []statestore.Group) error {
	if b.begin != nil {
		b.begin()
	}
	if b.keep == nil {
		return b.Journal.Commit(ctx, batch)
	}
	kept := make([]statestore.Group, 0, len(batch))
	for _, group := range batch {
		var records statestore.Group
		for _, record := range group {
			if len(record.Value) == 0 {
				records = append(records, record)
				continue
			}
			item, err := record.Decode()
			if err != nil {
				return err
			}
			if b.keep(item) {
				records = append(records, record)
			}
		}
		if len(records) > 0 {
			kept = append(kept, records)
		}
	}
	return b.Journal.Commit(ctx, kept)
}

func (b *broken) Close() error { return nil }

// early commits after Commit has returned.
type early struct {
	statestore.Journal

	mu      sync.Mutex
	waiting []statestore.Group
	failure error
	commits sync.WaitGroup
	running bool
}

func (e *early) Commit(ctx context.Context, batch []statestore.Group) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, group := range batch {
		e.waiting = append(e.waiting, cloneGroup(group))
	}
	if !e.running {
		e.running = true
		e.commits.Go(e.commit)
	}
	return e.failure
}

func (e *early) commit() {
	time.Sleep(lateness)
	e.mu.Lock()
	batch := e.waiting
	e.waiting, e.running = nil, false
	e.mu.Unlock()
	err := e.Journal.Commit(context.Background(), batch)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failure = errors.Join(e.failure, err)
}

func (e *early) Close() error {
	e.commits.Wait()
	return nil
}

// torn commits the records of a group one after the other.
type torn struct{ statestore.Journal }

func (t *torn) Commit(ctx context.Context, batch []statestore.Group) error {
	var first, rest []statestore.Group
	for _, group := range batch {
		if len(group) > 0 {
			first, rest = append(first, group[:1]), append(rest, group[1:])
		}
	}
	if err := t.Journal.Commit(ctx, first); err != nil {
		return err
	}
	time.Sleep(lateness)
	return t.Journal.Commit(ctx, slices.DeleteFunc(rest, func(g statestore.Group) bool { return len(g) == 0 }))
}

func (t *torn) Close() error { return nil }

func cloneGroup(group statestore.Group) statestore.Group {
	clone := make(statestore.Group, len(group))
	for i, record := range group {
		clone[i] = statestore.Record{ID: bytes.Clone(record.ID), Value: bytes.Clone(record.Value)}
	}
	return clone
}
