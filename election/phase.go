package election

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
)

// Phase is what a node does in an election. Logs and JSON show its name.
type Phase uint8

const (
	// Standby: the node waits for the lease, or stays out of the campaign. If something other
	// than another leader keeps it from the lease, Transition.Cause says what. When that is
	// over another Standby follows, without a cause, unless the node gets the lease at once.
	Standby Phase = iota
	// Claiming: the node has the lease and protects Options.Claim with its token.
	// Left out if there is nothing to claim.
	Claiming
	// Active: the node leads; its function runs, or is about to.
	Active
	// Draining: the term is over; the function must return.
	Draining
	// Released: the function has returned and the lease is free. If the release failed,
	// Transition.Cause says so, and the lease is free within its TTL. After a term that
	// it ended itself, a node remains Released for its hold-off.
	Released
	// Stopped: Run is not running. Only Status shows it; the Observer never gets it.
	Stopped
)

var phaseNames = [...]string{"standby", "claiming", "active", "draining", "released", "stopped"}

// String returns the name of the phase in lower case, such as "standby".
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase %d", uint8(p))
}

// MarshalText returns the name of the phase. It never fails.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Transition is a change of phase.
type Transition struct {
	// Phase is the phase that began.
	Phase Phase
	// At is when the phase began.
	At time.Time
	// Token is the fencing token of the term; zero in Standby.
	Token hlc.Token
	// Cause is why this node does not lead; nil in Claiming and Active.
	//
	// In Draining and Released it is why the term is over: why the tenure ended, if that came
	// first; else the cause of the function's context, the function's error, or what went wrong
	// before the function could start. What went wrong in releasing is joined to it.
	//
	// In Standby it is why the node stays out (ErrUnhealthy, ErrNotReady or ErrCrashed), or
	// what keeps it from the lease (errors of package transport, such as ErrNotAuthorized,
	// ErrNotSent or ErrOutcomeUnknown); nil if another node leads or is about to.
	Cause error
}

// String returns the phase, the token and the cause in one line.
func (t Transition) String() string {
	return Status{Phase: t.Phase, Token: t.Token, Cause: t.Cause}.String()
}

// LogValue returns a group with the keys phase and at, and token and cause unless they are zero.
func (t Transition) LogValue() slog.Value {
	return logGroup(t.Phase, "at", t.At, t.Token, t.Cause)
}

// MarshalJSON returns the fields under their names, with the cause as text. It implements [json.Marshaler].
func (t Transition) MarshalJSON() ([]byte, error) {
	type fields Transition
	return json.Marshal(struct {
		fields
		Cause string
	}{fields(t), operror.Text(t.Cause)})
}

// logGroup is the group that a Transition and a Status begin with.
func logGroup(phase Phase, timeKey string, at time.Time, token hlc.Token, cause error, more ...slog.Attr) slog.Value {
	attrs := append([]slog.Attr{slog.String("phase", phase.String()), slog.Time(timeKey, at)}, more...)
	if !token.IsZero() {
		attrs = append(attrs, slog.String("token", token.String()))
	}
	if cause != nil {
		attrs = append(attrs, slog.String("cause", cause.Error()))
	}
	return slog.GroupValue(attrs...)
}
