package crashtest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Kind is what an Operation did.
type Kind uint8

// The kinds of operations.
const (
	Get Kind = iota
	Set
	Del
	VDel
	// Notified is the arrival of a notification: at some time before it the key had this
	// value and version, or was gone.
	Notified
)

var kindNames = []string{"GET", "SET", "DEL", "VDEL", "NOTIFY"}

// String returns the verb.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", k)
}

// Result is how an Operation ended.
type Result uint8

// The results of operations.
const (
	// Unknown: no reply came. The store may have applied the request or not, or may yet.
	Unknown Result = iota
	// Done: a SET was applied, a DEL or VDEL deleted the key, a GET or a notification found it.
	Done
	// Failed: the condition of a SET or VDEL was not met.
	Failed
	// Absent: there is no key.
	Absent
	// NeedsToken: the store refused a request without a token.
	NeedsToken
	// LowerToken: the store refused a token that is lower than the key's.
	LowerToken

	// notSent: the store never got the request. No history has it.
	notSent
	// strange: the error is none that the protocol allows here.
	strange
)

var resultNames = []string{"unknown", "done", "condition failed", "absent", "needs a token", "token too low", "not sent", "strange"}

// String returns the result in words.
func (r Result) String() string {
	if int(r) < len(resultNames) {
		return resultNames[r]
	}
	return fmt.Sprintf("Result(%d)", r)
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
	var b strings.Builder
	fmt.Fprintf(&b, "%9.3f–%9.3f ms client %d: %v %q", milliseconds(o.Call), milliseconds(o.Return), o.Client, o.Kind, o.Key)
	if o.Kind == Set || o.Kind == VDel {
		fmt.Fprintf(&b, " %q", o.Value)
	}
	if o.Condition != transport.Always {
		fmt.Fprintf(&b, " %v", o.Condition)
	}
	if o.TTL > 0 {
		fmt.Fprintf(&b, " PX %d", o.TTL.Milliseconds())
	}
	if !o.Token.IsZero() {
		fmt.Fprintf(&b, " token %v", o.Token)
	}
	fmt.Fprintf(&b, ": %v", o.Result)
	if o.Result == Done && (o.Kind == Get || o.Kind == Notified) {
		fmt.Fprintf(&b, " %q", o.Read)
	}
	if !o.Version.IsZero() {
		fmt.Fprintf(&b, " version %v", o.Version)
	}
	return b.String()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// changes reports whether the operation may have changed the key.
func (o *Operation) changes() bool {
	return o.Kind != Get && o.Kind != Notified && (o.Result == Done || o.Result == Unknown)
}

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
