package election

import (
	"context"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
)

// Term is one period of leadership. It is safe for concurrent use.
type Term struct {
	tenure *lease.Tenure
	guard  *fencing.Guard
	cancel context.CancelCauseFunc
	yields bool // its hold-down is over; Elector.mu guards it
}

// Guard returns the guard through which to write: it attaches the term's token
// and refuses to write once the tenure is over.
func (t *Term) Guard() *fencing.Guard { return t.guard }

// Tenure returns the tenure of the term: this holding of the lease.
func (t *Term) Tenure() *lease.Tenure { return t.tenure }

// Token returns the fencing token, for resources outside the store. Like
// [lease.Tenure.Token] it never blocks, and fails once the tenure is over.
func (t *Term) Token() (hlc.Token, error) { return t.tenure.Token() }

// Resign ends the term: the context of the function ends with ErrResigned, and
// when the function has returned the lease is released. This node then stays out for its
// hold-off. Resign does not wait for any of that.
func (t *Term) Resign() { t.cancel(ErrResigned) }
