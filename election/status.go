package election

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/lease"
)

// Status is what an Elector does at one moment, for status pages, metrics and logs. It
// gives no right to act: between the moment and the action the term may end. To act, use
// [Term.Guard] or [Term.Token].
type Status struct {
	// Phase is what the node does now.
	Phase Phase
	// Since is when the phase began or, within Standby, when Cause changed.
	Since time.Time
	// Term counts the terms of this Elector: it is the number of the present term, or of
	// the latest one if there is none now. A term counts as soon as the node has the lease,
	// although Phase is Standby until Options.Standby has returned. Zero: there was none yet.
	Term int
	// Token is the fencing token of the term from Claiming to Released; otherwise zero.
	Token hlc.Token
	// Leader is the name under which the lease is held, as far as this node knows: its
	// own name while its tenure lasts, and while it campaigns the name that it heard last
	// from the store. That name can be out of date if notifications are lost. Leader is
	// empty if no node holds the lease, if the holder is not known, or if this node does
	// not campaign. For a view that is up to date in each phase, follow [Elector.Leaders].
	Leader string
	// Cause is why this node does not lead, as in Transition.Cause. In Stopped it is what
	// Run returned. Nil in Claiming and Active, in Standby if another node leads or is
	// about to, and before the first Run.
	Cause error
	// HoldOffUntil is when the hold-off ends that keeps this node from campaigning; zero: none.
	HoldOffUntil time.Time
}

// Status returns what this Elector does at the moment: one consistent snapshot, never a mix of
// two phases. It does not wait for the store, the Observer or any other function, and is safe
// for concurrent use, also within the functions of the Options. The Observer can lag behind it.
func (e *Elector) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	status := e.status
	switch {
	case e.campaigning:
		status.Leader = e.lease.LastHolder().Name
	case e.tenure != nil && e.tenure.Remaining() > 0:
		status.Leader = e.holderName()
	}
	return status
}

// setTenure notes the tenure of a new term, or nil, and whether this node waits for one.
func (e *Elector) setTenure(tenure *lease.Tenure, campaigning bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tenure, e.campaigning = tenure, campaigning
	if tenure != nil {
		e.status.Term++
	}
}

// MarshalJSON returns the fields under their names, with the cause as text. It implements [json.Marshaler].
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		Cause string
	}{fields(s), operror.Text(s.Cause)})
}

// String returns the status in one line.
func (s Status) String() string {
	text := s.Phase.String()
	if s.Term > 0 {
		text += fmt.Sprintf(", term %d", s.Term)
	}
	if !s.Token.IsZero() {
		text += ", token " + s.Token.String()
	}
	if s.Leader != "" {
		text += fmt.Sprintf(", %q leads", s.Leader)
	}
	if !s.HoldOffUntil.IsZero() {
		text += ", held off until " + s.HoldOffUntil.Format(time.RFC3339)
	}
	if s.Cause != nil {
		text += ": " + s.Cause.Error()
	}
	return text
}

// LogValue returns a group with the keys phase, since and term and, unless they are zero,
// leader, hold_off_until, token and cause.
func (s Status) LogValue() slog.Value {
	more := []slog.Attr{slog.Int("term", s.Term)}
	if s.Leader != "" {
		more = append(more, slog.String("leader", s.Leader))
	}
	if !s.HoldOffUntil.IsZero() {
		more = append(more, slog.Time("hold_off_until", s.HoldOffUntil))
	}
	return logGroup(s.Phase, "since", s.Since, s.Token, s.Cause, more...)
}
