package election

import (
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
)

// Phase is what a node does in an election.
type Phase string

const (
	// Standby: the node waits for the lease, or stays out of the campaign. If something other
	// than another leader keeps it from the lease, Status.Cause says what. When that is
	// over another Standby follows, without a cause, unless the node gets the lease at once.
	Standby Phase = "standby"
	// Claiming: the node has the lease and protects Options.Claim with its token.
	// Left out if there is nothing to claim.
	Claiming Phase = "claiming"
	// Active: the node leads; its function runs, or is about to.
	Active Phase = "active"
	// Draining: the term is over; the function must return.
	Draining Phase = "draining"
	// Released: the function has returned and the lease is free. If the release failed,
	// Status.Cause says so, and the lease is free within its TTL. After a term that
	// it ended itself, a node remains Released for its hold-off.
	Released Phase = "released"
	// Stopped: Run is not running. The Observer never gets it.
	Stopped Phase = "stopped"
)

// Status is what an Elector does at one moment, for status pages, metrics and logs. It
// gives no right to act: between the moment and the action the term may end. To act, use
// [Term.Guard] or [Term.Token].
type Status struct {
	// Phase is what the node does now.
	Phase Phase
	// Since is when the phase began or, within Standby, when Cause changed.
	Since time.Time
	// Token is the fencing token of the term from Claiming to Released; otherwise zero.
	Token hlc.Token
	// Leader is the name under which the lease is held, as far as this node knows: its
	// own name while its tenure lasts, and while it campaigns the name that it heard last
	// from the store. That name can be out of date if notifications are lost. Leader is
	// empty if no node holds the lease, if the holder is not known, or if this node does
	// not campaign. For a view that is up to date in each phase, follow [lease.Lease.Observe].
	Leader string
	// Cause is why this node does not lead. Nil in Claiming and Active, and before the first Run.
	//
	// In Draining and Released it is why the term is over: why the tenure ended, if that came
	// first; else the cause of the function's context, the function's error, or what went wrong
	// before the function could start. What went wrong in releasing is joined to it.
	//
	// In Standby it is why the node stays out (ErrUnhealthy or ErrCrashed), or
	// what keeps it from the lease (errors of package transport, such as ErrNotAuthorized,
	// ErrNotSent or ErrOutcomeUnknown); nil if another node leads or is about to. In Stopped
	// it is what Run returned.
	Cause error
}

// Status returns what this Elector does at the moment: one consistent snapshot, never a mix of
// two phases. It does not wait for the store, the Observer or any other function, and is safe
// for concurrent use, also within the functions of the Options. The Observer can lag behind it.
func (e *Elector) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.statusLocked()
}

func (e *Elector) statusLocked() Status {
	status := e.status
	switch {
	case e.campaigning != nil:
		status.Leader = e.lease.LastHolder().Name
	case e.term != nil && e.term.tenure.Remaining() > 0:
		status.Leader = e.options.Lease.Holder
	}
	return status
}

// enter sets the phase, logs it, and tells it to the observer. It does not wait for the observer, which runs in a
// goroutine of its own, after earlier calls have returned: it may end it, and holds up no node that has the lease. The
// channel is closed when it has returned. Package lease logs which holder a node waits for.
func (e *Elector) enter(phase Phase, cause error) (delivered <-chan error) {
	e.set(func() {
		e.enterLocked(phase, cause)
		status, previous := e.statusLocked(), e.notified
		e.notified = e.call("the observer", true, func() error {
			<-previous
			e.options.Observer(status)
			return nil
		})
		delivered = e.notified
	})
	texts := map[Phase]string{Standby: "standing by", Active: "leading", Draining: "no longer leading"}
	if text := texts[phase]; text != "" {
		var attributes []any
		if cause != nil {
			attributes = []any{"cause", operror.Text(cause)}
		}
		e.options.Logger.Info(text, attributes...)
	}
	return delivered
}

func (e *Elector) enterLocked(phase Phase, cause error) {
	e.status = Status{Phase: phase, Since: time.Now(), Cause: cause}
	if e.term != nil {
		e.status.Token = e.term.token
	}
}

// standBy enters Standby and waits for the observer, so that few phases wait for it: no other node waits for this one
// then. It is Lease.OnWaiting too.
func (e *Elector) standBy(cause error) { <-e.enter(Standby, cause) }
