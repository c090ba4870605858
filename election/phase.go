package election

import (
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// Phase is where a node stands in an election.
type Phase uint8

const (
	// Standby: the node waits for the lease. If it stays out of the campaign, or if
	// something other than another leader keeps it from the lease, Transition.Cause says
	// why. When that is over another Standby follows, with no cause, unless the node gets
	// the lease at once.
	Standby Phase = iota
	// Claiming: the node has the lease and protects Options.Claim with its token.
	// Left out if there is nothing to claim.
	Claiming
	// Active: the node leads; its function runs, or is about to.
	Active
	// Draining: the term is over; the function must return.
	Draining
	// Released: the function has returned and the lease is free, or will be
	// within its TTL if Transition.Cause tells of a failed release.
	Released
)

// String names the phase.
func (p Phase) String() string {
	return [...]string{"standby", "claiming", "active", "draining", "released"}[p]
}

// Transition is a change of phase.
type Transition struct {
	Phase Phase
	// At is when the phase began.
	At time.Time
	// Token is the fencing token of the term; zero in Standby.
	Token hlc.Token
	// Cause is why the term is over, in Draining and Released: why the tenure ended,
	// if that came first; else the cause of the function's context, the function's error,
	// or what went wrong before the function could start; and what went wrong in
	// releasing. In Standby it is why the node stays out (ErrUnhealthy, ErrNotReady or
	// ErrCrashed), or what keeps it from the lease (errors of package transport, such as
	// ErrNotAuthorized, ErrNotSent or ErrOutcomeUnknown); nil if it waits for another
	// leader.
	Cause error
}
