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
	return fmt.Sprintf("%v–%v client %d: %v %q %q %v PX %d token %v: %q %q version %v", o.Call, o.Return, o.Client,
		o.Kind, o.Key, o.Value, o.Condition, o.TTL.Milliseconds(), o.Token, o.Result, o.Read, o.Version)
}

// end is when the operation has taken effect at the latest.
func (o *Operation) end() time.Duration {
	if o.Result == Unknown {
		return forever
	}
	return o.Return
}

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

// Check reports whether the operations on the key are linearizable: whether they can have
// taken effect one after the other, by the rules of the protocol and of a durable store. It
// gives up after timeout.
//
// An operation of unknown outcome may take effect at any time after its call, or never. A key
// with a lifetime may go away between the two times that its SET and the restarts since allow.
func (h *History) Check(timeout time.Duration) porcupine.CheckResult {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) (states []any) {
			for _, r := range h.after(state.(register), input.(*Operation)) {
				states = append(states, r)
			}
			return states
		},
	}
	var operations []porcupine.Operation
	for i := range h.Operations {
		o := &h.Operations[i]
		if o.Result != Unknown || o.changes() { // a GET without a reply says nothing
			operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o,
				Call: int64(o.Call), Return: int64(o.end())})
		}
	}
	return porcupine.CheckOperationsTimeout(model.ToModel(), operations, timeout)
}

// String returns the operations in the order of their calls, one each line, and the restarts.
func (h *History) String() string {
	byCall := func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) }
	var b strings.Builder
	for _, o := range slices.SortedStableFunc(slices.Values(h.Operations), byCall) {
		fmt.Fprintln(&b, o)
	}
	for _, r := range h.Restarts {
		fmt.Fprintf(&b, "%v–%v restart\n", r.Dead, r.Ready)
	}
	return b.String()
}
