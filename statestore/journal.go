package statestore

import (
	"context"
	"time"
)

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
	//
	// It also returns what it knows of the process before.
	Load(ctx context.Context, each func(Record) error) (former Former, err error)
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

// Bounded is what a Journal also implements if it can be full. Its method is called before each
// command, also during the others: it is cheap and does not wait.
type Bounded interface {
	// Full reports whether the store must refuse what would need more space, as it does at its
	// own limits. Deletions, renewals and values that are no longer than the present ones go on.
	Full() bool
}

// IsFull reports whether a journal is Bounded and full.
func IsFull(journal Journal) bool {
	bounded, ok := journal.(Bounded)
	return ok && bounded.Full()
}

// Former is what a journal knows of the process that had it before. The zero value is right where that
// process ended on this machine.
type Former struct {
	// Idle is how long ago, when Load returned, that process could have answered last: then the lifetimes of
	// the keys begin again. Too short is safe, and too long is not: a holder would believe in a renewal that
	// the store has forgotten. So a journal that does not know returns 0.
	Idle time.Duration
	// Silent says that its clients may not have noticed its end: its machine may be gone without a
	// word. Then keys that end with their connection (see Command.Willed) keep half of their lifetimes,
	// from Idle on: a holder of package lease that runs gives a silent connection up before that.
	Silent bool
}

// SilentFor is for how long a journal must say that a former process fell Silent, over each restart: half of
// the longest lifetime of a key that ends with its connection. MQTT allows no longer keep-alive.
const SilentFor = 14 * time.Hour

// Record is one piece of the state of a store, as a journal keeps it: a key, the fence of a
// key that is gone, a remembered reply, a change of a lease, the identity of the data, or the bound
// of the versions. ID says what the record is about; the state has at most one record for each ID.
// A Value of nil says that the piece is gone. Both are at most a few bytes longer than what
// clients sent, and an ID has 1 to MaxID bytes.
//
// Only this package knows what the bytes mean. They must not be modified.
type Record struct {
	ID, Value []byte
}

// Group is what a journal must keep whole or not at all, in order: the records that one
// command changed, or one key that expired. It has at most MaxGroup records. If an ID comes
// twice, the later record counts.
type Group []Record

// MaxID is the largest length of the ID of a Record, in bytes.
const MaxID = 1_100

// MaxGroup is the largest number of records in a Group.
const MaxGroup = 64

// Effects are what a command or an expiry causes besides its reply.
type Effects struct {
	// Notifications are to be delivered in this order, after Groups are durable.
	Notifications []Notification
	// Groups are what a journal must keep, in this order, before the reply and the
	// notifications leave. The group of the command itself is the last; before it come
	// the groups of keys that had expired. Empty unless Options.Journaled: then nothing changed
	// that must survive a restart.
	Groups []Group
	// Keys are the keys that Groups are about. Until Groups are durable, no reply about one
	// of them may leave.
	Keys []string
}

// MayWrite reports whether Apply, called next with the same command and time, may return records to
// keep. It changes nothing. If it reports false, Apply returns none: of a read, of a SET whose condition fails, or of
// a renewal that keeps value, token, lifetime and Command.Willed. So a caller can refuse what has to wait for a
// journal, and let these through. True may be wrong: a command may be refused, or be a redelivery.
func (s *Store) MayWrite(now Instant, command *Command) bool {
	current := s.entries[command.Key]
	switch {
	case !s.options.Journaled:
		return false
	case current != nil && current.due(now): // its removal has a record
		return true
	case command.Verb == VerbGet, command.Verb == VerbKeyNotify:
		return false
	case command.Verb != VerbSet, current == nil:
		return true
	case command.fails(current):
		return false
	case !command.renews(current):
		return true
	}
	version, err := s.issue(now, command, current)
	return err != nil || version.above(s.versions.committed) // its version may need a record, see Committed
}
