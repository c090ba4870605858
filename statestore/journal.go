package statestore

import "context"

// Journal keeps the records of a store: ordered atomic batches in, everything back at the
// start. It knows nothing of the protocol. The store itself does no I/O; a program that gives
// the server a journal has the server call it.
//
// Package statestoretest has the tests that every journal passes.
//
// Load, Commit and Close are called by one goroutine at a time. Standing may be called by
// several goroutines at once, also during the others.
type Journal interface {
	// Load calls each for every record, in any order, and returns the first error of each
	// or why the records cannot be read. It is called once, before Commit. The bytes of a
	// record belong to the callee.
	Load(ctx context.Context, each func(Record) error) error
	// Commit makes the groups of a batch durable, in order. It keeps a group whole or not at
	// all. After an error the first groups may be durable and the rest are not, and the
	// caller must not use the journal any more, except for Close. Commit must not keep the
	// batch or its bytes.
	Commit(ctx context.Context, batch []Group) error
	// Standing returns nil while this process may answer from memory. A journal that several
	// processes share returns an error once another of them may have taken over; a journal
	// of one process always returns nil. It is cheap and does not wait.
	Standing() error
	// Close frees what the journal holds. What was committed stays.
	Close() error
}
