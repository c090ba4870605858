package crashtest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/statestore"
)

// fault is a mistake that a store could make. Run must find each of them; a check that was
// never seen to fail proves nothing.
type fault string

// The faults that can be built into a journal.
const (
	// replyBeforeCommit: replies leave before the commit, which is made with the next one.
	replyBeforeCommit fault = "reply before commit"
	// lostBatch: some batches are not committed.
	lostBatch fault = "lost batch"
	// lifetimeNotGivenBack: a restart does not give keys their whole lifetime again.
	lifetimeNotGivenBack fault = "lifetime not given back"
	// replyForgotten: the remembered replies are not kept.
	replyForgotten fault = "remembered reply not kept"
	// fenceForgotten: the fence of a key is not kept.
	fenceForgotten fault = "fence not kept"
	// identityForgotten: each start takes a new identity.
	identityForgotten fault = "identity not kept"
)

var faults = []fault{replyBeforeCommit, lostBatch, lifetimeNotGivenBack, replyForgotten, fenceForgotten, identityForgotten}

// One of losses batches is lost.
const losses = 10

// faulty is a journal with a fault: it keeps less than it is told, or gives back something else.
type faulty struct {
	statestore.Journal
	fault   fault
	commits int
	late    []statestore.Group // what replyBeforeCommit has yet to commit
}

func (b *faulty) Commit(ctx context.Context, batch []statestore.Group) error {
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
	if b.fault == replyBeforeCommit {
		kept, b.late = b.late, kept
	}
	return b.Journal.Commit(ctx, kept)
}

// keeps reports whether a record is kept. A store refuses to start without
// identity and bound, so these are.
func (b *faulty) keeps(kind statestore.Kind) bool {
	lost := b.commits%losses == 0 && kind != statestore.KindBound && kind != statestore.KindIdentity
	switch b.fault {
	case lostBatch:
		return !lost
	case replyForgotten:
		return kind != statestore.KindReply
	}
	return true
}

func (b *faulty) Load(ctx context.Context, each func(statestore.Record) error) (statestore.Former, error) {
	return b.Journal.Load(ctx, func(record statestore.Record) error {
		item, err := record.Decode()
		switch {
		case err != nil:
			return err
		case b.fault == lifetimeNotGivenBack && item.Lifetime > 0:
			item.Lifetime = time.Millisecond
		case b.fault == fenceForgotten && item.Kind == statestore.KindFence:
			return nil
		case b.fault == fenceForgotten:
			item.Token = hlc.Token{}
		case b.fault == identityForgotten && item.Kind == statestore.KindIdentity:
			item.Identity = rand.Text()
		}
		return each(item.Record())
	})
}

func clone(record statestore.Record) statestore.Record {
	return statestore.Record{ID: bytes.Clone(record.ID), Value: bytes.Clone(record.Value)}
}
