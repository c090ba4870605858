// Package failpoint names the steps at which a store can crash with different results, so that
// a test can kill or stop a program there. A program that sets no hook pays for one atomic load
// at each point.
//
// Only tests, and the child processes that tests kill, call [Set].
package failpoint

import "sync/atomic"

// Point is a step of a store that keeps a journal.
type Point string

// The points, in the order in which a request passes them. Only a store with a journal passes
// them; backups and compactions are made by the journal itself.
const (
	// DuringLoad is passed with each record that a store reads from its journal at the start.
	DuringLoad Point = "during load"
	// AfterApply is passed when a command has changed the store in memory, and nothing else.
	// The lock of the engine is held.
	AfterApply Point = "after apply"
	// BeforeCommit is passed before each batch is given to the journal.
	BeforeCommit Point = "before commit"
	// AfterCommit is passed when the journal has a batch, and nothing of it has left.
	AfterCommit Point = "after commit"
	// BeforeNotification is passed before a notification is handed over that waited for a
	// commit. The lock of the engine is held.
	BeforeNotification Point = "before notification"
	// BeforeReply is passed before a reply is handed over that waited for a commit.
	BeforeReply Point = "before reply"
	// DuringBackup is passed with each part of a backup that is written.
	DuringBackup Point = "during backup"
	// DuringCompaction is passed with each record that a compaction has read for its copy.
	DuringCompaction Point = "during compaction"
)

// Points returns all points.
func Points() []Point {
	return []Point{DuringLoad, AfterApply, BeforeCommit, AfterCommit, BeforeNotification, BeforeReply,
		DuringBackup, DuringCompaction}
}

var hook atomic.Pointer[func(Point)]

// Hit calls the hook, if there is one.
func Hit(point Point) {
	if call := hook.Load(); call != nil {
		(*call)(point)
	}
}

// Set makes call the hook of the whole process until restore is called, which brings the former
// one back. Several goroutines call it at the same time. At a point where the engine's lock is
// held it must not call the engine; it may block, or end the process.
func Set(call func(Point)) (restore func()) {
	former := hook.Swap(&call)
	return func() { hook.Store(former) }
}
