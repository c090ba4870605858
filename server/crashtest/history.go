package crashtest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Kind is what an Operation did.
type Kind string

// The kinds of operations.
const (
	Get  Kind = "GET"
	Set  Kind = "SET"
	Del  Kind = "DEL"
	VDel Kind = "VDEL"
	// Notified is the arrival of a notification: at some time before it the key had this
	// value and version, or was gone.
	Notified Kind = "NOTIFY"
)

// Result is how an Operation ended.
type Result string

// The results of operations.
const (
	// Unknown: no reply came. The store may have applied the request or not, or may yet.
	Unknown Result = ""
	// Done: a SET was applied, a DEL or VDEL deleted the key, a GET or a notification found it.
	Done Result = "done"
	// Failed: the condition of a SET or VDEL was not met.
	Failed Result = "condition failed"
	// Absent: there is no key.
	Absent Result = "absent"
	// NeedsToken: the store refused a request without a token.
	NeedsToken Result = "needs a token"
	// LowerToken: the store refused a token that is lower than the key's.
	LowerToken Result = "token too low"

	// notSent: the store never got the request. No history has it.
	notSent Result = "not sent"
	// strange: the error is none that the protocol allows here.
	strange Result = "strange"
)

// resultOf returns what an error of package transport says about a request.
func resultOf(err error) Result {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, transport.ErrConditionFailed):
		return Failed
	case errors.Is(err, transport.ErrFencingTokenRequired):
		return NeedsToken
	case errors.Is(err, transport.ErrFencingTokenLower):
		return LowerToken
	case errors.Is(err, transport.ErrOutcomeUnknown):
		return Unknown
	case errors.Is(err, transport.ErrNotSent), errors.Is(err, transport.ErrClosed):
		return notSent
	}
	return strange
}

// Operation is one request, as its client saw it, or one notification.
type Operation struct {
	Client int // numbers the client
	Kind   Kind
	Key    string
	// Value is what a SET writes and a VDEL expects.
	Value     string
	Condition transport.Condition // of a SET
	TTL       time.Duration       // of a SET; 0: none
	Token     hlc.Token           // zero: none
	// Call and Return say when the request began and when its result was known, on the clock
	// of the History. A notification is called when the change that it reports can have
	// begun. If the Result is Unknown, the store may apply the request after Return.
	Call, Return time.Duration
	Result       Result
	// Read is the value that a GET or a notification found.
	Read string
	// Version is the version in the reply, or zero if the reply had none.
	Version hlc.Timestamp
}

// String returns the operation in one line.
func (o Operation) String() string {
	return fmt.Sprintf("%9.3f–%9.3f ms client %d: %v %q %q %v PX %d token %v: %q %q version %v",
		milliseconds(o.Call), milliseconds(o.Return), o.Client, o.Kind, o.Key, o.Value, o.Condition, o.TTL.Milliseconds(), o.Token, o.Result, o.Read, o.Version)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// changes reports whether the operation may have changed the key.
func (o *Operation) changes() bool {
	return o.Kind != Get && o.Kind != Notified && (o.Result == Done || o.Result == Unknown)
}

// isConditional reports whether it depends on the key if the operation succeeds.
func (o *Operation) isConditional() bool {
	return o.Kind == VDel || o.Condition != transport.Always || !o.Token.IsZero()
}

// History is what clients saw of one key, and the restarts of the store meanwhile.
type History struct {
	Operations []Operation
	Restarts   []Restart // in order
	// Strict says that the store is strict: see statestore.Options.
	Strict bool
}

// Verdict is what a check of a History found.
type Verdict string

// The verdicts.
const (
	// Undecided: the check did not end in time. It proves nothing.
	Undecided Verdict = "undecided"
	// Linearizable: the operations can have taken effect one after the other, each between
	// its call and its return.
	Linearizable Verdict = "linearizable"
	// NotLinearizable: they cannot.
	NotLinearizable Verdict = "not linearizable"
)

// Check reports whether the operations on the key are linearizable: whether they can have
// taken effect one after the other, by the rules of the protocol and of a durable store. It
// gives up after timeout, or after a step for each microsecond of it: in a synctest bubble time
// stands still during the check.
//
// An operation of unknown outcome may take effect at any time after its call, or never. A key
// with a lifetime may go away between the two times that its SET and the restarts since allow.
func (h *History) Check(timeout time.Duration) Verdict {
	g := &rules{restarts: h.Restarts, strict: h.Strict}
	left := int64(timeout / time.Microsecond) // steps
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) (states []any) {
			if left--; left < 0 {
				return nil // so the check ends soon, without a verdict
			}
			for _, r := range g.after(state.(register), input.(*Operation)) {
				states = append(states, r)
			}
			return states
		},
	}
	operations := make([]porcupine.Operation, 0, len(h.Operations))
	for i := range h.Operations {
		o := &h.Operations[i]
		end := o.Return
		if o.Result == Unknown {
			if !o.changes() {
				continue // a GET without a reply says nothing
			}
			end = forever
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Call), Return: int64(end)})
	}
	switch result := porcupine.CheckOperationsTimeout(model.ToModel(), operations, timeout); {
	case result == porcupine.Ok:
		return Linearizable
	case result == porcupine.Illegal && left >= 0:
		return NotLinearizable
	}
	return Undecided
}

// String returns the operations in the order of their calls, one each line, and the restarts.
func (h *History) String() string {
	byCall := func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) }
	var b strings.Builder
	for _, o := range slices.SortedStableFunc(slices.Values(h.Operations), byCall) {
		fmt.Fprintln(&b, o)
	}
	for _, r := range h.Restarts {
		fmt.Fprintf(&b, "%9.3f–%9.3f ms restart\n", milliseconds(r.Dead), milliseconds(r.Ready))
	}
	return b.String()
}
