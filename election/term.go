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
}

// Guard returns the guard through which to write: it attaches the term's token
// and refuses once the term cannot be said to last any more.
func (t *Term) Guard() *fencing.Guard { return t.guard }

// Tenure returns the holding of the lease on which the term rests.
func (t *Term) Tenure() *lease.Tenure { return t.tenure }

// Token returns the fencing token, for resources outside the store. Like
// [lease.Tenure.Token] it fails once the tenure is over.
func (t *Term) Token() (hlc.Token, error) { return t.tenure.Token() }

// Resign ends the term: the context of the function ends with ErrResigned, and
// when the function has returned the lease goes to another candidate. It does
// not wait for that.
func (t *Term) Resign() { t.cancel(ErrResigned) }
