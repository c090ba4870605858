package crashtest

import (
	"bytes"
	"context"
	"crypto/rand"
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
	// ReplyBeforeCommit: replies leave before the commit, which is made with the next one.
	ReplyBeforeCommit Fault = "reply before commit"
	// LostBatch: some batches are not committed.
	LostBatch Fault = "lost batch"
	// LifetimeNotGivenBack: a restart does not give keys their whole lifetime again.
	LifetimeNotGivenBack Fault = "lifetime not given back"
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
		ReplyBeforeCommit, LostBatch, LifetimeNotGivenBack, ReplyForgotten, FenceForgotten, IdentityForgotten,
	}
}

// One of losses batches is lost.
const losses = 10

// broken is a journal with a fault: it keeps less than it is told, or gives back something else.
type broken struct {
	statestore.Journal
	fault   Fault
	commits int
	late    []statestore.Group // what ReplyBeforeCommit has yet to commit
}

func (b *broken) Commit(ctx context.Context, batch []statestore.Group) error {
	b.commits++
	kept := make([]statestore.Group, 0, len(batch))
	for _, group := range batch {
		var records statestore.Group
		for _, record := range group {
			item := statestore.Item{} // of a deletion
			if len(record.Value) > 0 {
				var err error
				if item, err = record.Decode(); err != nil {
					return err
				}
			}
			if b.keeps(item.Kind) {
				records = append(records, clone(record))
			}
		}
		if len(records) > 0 {
			kept = append(kept, records)
		}
	}
	if b.fault == ReplyBeforeCommit {
		kept, b.late = b.late, kept
	}
	return b.Journal.Commit(ctx, kept)
}

// keeps reports whether a record is kept. A store refuses to start without
// identity and bound, so these are.
func (b *broken) keeps(kind statestore.Kind) bool {
	lost := b.commits%losses == 0 && kind != statestore.KindBound && kind != statestore.KindIdentity
	switch b.fault {
	case LostBatch:
		return !lost
	case ReplyForgotten:
		return kind != statestore.KindReply
	}
	return true
}

func (b *broken) Load(ctx context.Context, each func(statestore.Record) error) (statestore.Former, error) {
	return b.Journal.Load(ctx, func(record statestore.Record) error {
		item, err := record.Decode()
		switch {
		case err != nil:
			return err
		case b.fault == LifetimeNotGivenBack && item.Lifetime > 0:
			item.Lifetime = time.Millisecond
		case b.fault == FenceForgotten && item.Kind == statestore.KindFence:
			return nil
		case b.fault == FenceForgotten:
			item.Token = hlc.Token{}
		case b.fault == IdentityForgotten && item.Kind == statestore.KindIdentity:
			item.Identity = rand.Text()
		}
		return each(item.Record())
	})
}

func clone(record statestore.Record) statestore.Record {
	return statestore.Record{ID: bytes.Clone(record.ID), Value: bytes.Clone(record.Value)}
}
