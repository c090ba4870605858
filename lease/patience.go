package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurelock/tenure/transport"
)

// obstacle is why one Acquire still waits: what the latest request came to, and who had
// the lease when that was last heard. A nil obstacle belongs to TryAcquire and notes
// nothing.
type obstacle struct {
	lease  *Lease
	cause  error  // why the latest request came to nothing; nil if the store answered it
	told   string // the class of what Options.OnWaiting was told last; "" for nil
	held   bool   // another had the lease
	holder Holder // which one; not Held if that is not known
}

// met notes that a request came to nothing, and reports whether that is news.
func (o *obstacle) met(cause error) (news bool) {
	if o == nil {
		return false
	}
	o.cause = cause
	return o.tell(classOf(cause))
}

// gone notes that the store answered.
func (o *obstacle) gone() {
	o.cause = nil
	o.tell("")
}

func (o *obstacle) tell(class string) (news bool) {
	if class == o.told {
		return false
	}
	o.told = class
	if o.lease.options.OnWaiting != nil {
		o.lease.options.OnWaiting(o.cause)
	}
	return true
}

// heard notes what the key holds.
func (o *obstacle) heard(entry transport.Entry) {
	o.held, o.holder = entry.Exists, holderOf(entry)
}

// refused notes that another has the lease.
func (o *obstacle) refused() {
	if !o.held {
		o.holder = Holder{} // one that was not heard of
	}
	o.held = true
	o.gone()
}

// givenUp returns the error of an Acquire whose ctx ended before err did.
func (o *obstacle) givenUp(ctx context.Context, err error) error {
	g := &givenUp{cause: context.Cause(ctx), reason: o.cause, unknown: errors.Is(err, transport.ErrOutcomeUnknown)}
	if o.held {
		g.held = &HeldError{Lease: o.lease.name, Holder: o.holder}
	}
	return g
}

// givenUp is the error of an Acquire whose context ended. It matches the cause of that,
// what stood in the way, and ErrHeld if another had the lease.
type givenUp struct {
	cause   error      // of the end of the context
	reason  error      // why the latest request came to nothing; nil if the store answered
	held    *HeldError // nil if the lease was free when that was last heard
	unknown bool       // whether it was acquired
}

func (g *givenUp) Error() string {
	text := g.cause.Error()
	if g.unknown {
		text = transport.ErrOutcomeUnknown.Error() + ": " + text
	}
	if g.reason != nil {
		text += fmt.Sprintf("; it still waited because of this: %v", g.reason)
	}
	switch {
	case g.held == nil:
	case g.held.Holder.Held:
		text += fmt.Sprintf("; when last heard of, it was held by %q", g.held.Holder.Name)
	default:
		text += "; when last heard of, it was not granted: " + unknownHolder
	}
	return text
}

func (g *givenUp) Unwrap() []error {
	causes := []error{g.cause}
	if g.unknown {
		causes = append(causes, transport.ErrOutcomeUnknown)
	}
	if g.held != nil {
		causes = append(causes, g.held)
	}
	if g.reason != nil {
		causes = append(causes, &reason{error: g.reason, unknown: g.unknown})
	}
	return causes
}

// reason is the error of one request, as part of the error of an acquisition. It matches
// what it is, but for what holds of that request only: that its own time was up, and what
// became of it.
type reason struct {
	error
	unknown bool // what became of the acquisition
}

func (r *reason) Is(target error) bool {
	switch target {
	case transport.ErrOutcomeUnknown, context.Canceled, context.DeadlineExceeded:
		return false
	case transport.ErrNotSent:
		return !r.unknown && errors.Is(r.error, target)
	}
	return errors.Is(r.error, target)
}

func (r *reason) As(target any) bool { return errors.As(r.error, target) }

// classOf tells errors apart that have different causes, and not those that differ in a
// number or a name: so that what is told of them is told once.
func classOf(err error) string {
	var refused *transport.RefusedError
	var rejected *transport.RejectedError
	var connect *transport.ConnectError
	var disconnect *transport.DisconnectError
	switch {
	case errors.As(err, &refused):
		if errors.Unwrap(refused) == nil {
			return "refused in words that the protocol does not list"
		}
		return refused.Text
	case errors.As(err, &rejected):
		return fmt.Sprint("rejected ", rejected.Code)
	case errors.As(err, &connect):
		return fmt.Sprint("connect ", connect.Code)
	case errors.As(err, &disconnect):
		return fmt.Sprint("disconnect ", disconnect.Code)
	}
	for _, class := range []error{transport.ErrNoStore, transport.ErrNotSent, transport.ErrBadReply, transport.ErrOutcomeUnknown} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return "another"
}
