package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurelock/tenure/transport"
)

// obstacle is why one Acquire still waits: the error of the latest request, and the holder
// that the store last named. A nil obstacle belongs to TryAcquire and notes nothing.
type obstacle struct {
	lease  *Lease
	cause  error  // of the latest request; nil if the store answered it
	told   string // the class of the cause that Options.OnWaiting got last; "" for nil
	held   bool   // another had the lease
	holder Holder // not Held if it is not known
}

// met notes why a request failed, and reports whether that is news.
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
	o.held, o.holder = entry.Exists, o.lease.heard(entry)
}

// refused notes that another has the lease.
func (o *obstacle) refused() {
	if !o.held {
		o.holder = Holder{} // the refusal does not name it
	}
	o.held = true
	o.gone()
}

// gaveUp returns the error of an Acquire whose ctx ended; err is how its last attempt ended.
func (o *obstacle) gaveUp(ctx context.Context, err error) error {
	g := &gaveUpError{cause: context.Cause(ctx), reason: o.cause, unknown: errors.Is(err, transport.ErrOutcomeUnknown)}
	if o.held {
		g.held = &HeldError{Lease: o.lease.name, Holder: o.holder}
	}
	return g
}

// gaveUpError is the error of an Acquire whose context ended. It matches the cause of the
// context, the error of the latest request, and ErrHeld if another had the lease.
type gaveUpError struct {
	cause   error      // of the end of the context
	reason  error      // of the latest request; nil if the store answered it
	held    *HeldError // nil if the lease was free by the latest answer
	unknown bool       // whether the lease was acquired is not known
}

func (g *gaveUpError) Error() string {
	text := g.cause.Error()
	if g.unknown {
		text = transport.ErrOutcomeUnknown.Error() + ": " + text
	}
	if g.reason != nil {
		text += fmt.Sprintf("; the latest request failed: %v", g.reason)
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

func (g *gaveUpError) Unwrap() []error {
	causes := []error{g.cause}
	if g.unknown {
		causes = append(causes, transport.ErrOutcomeUnknown)
	}
	if g.held != nil {
		causes = append(causes, g.held)
	}
	if g.reason != nil {
		causes = append(causes, &requestError{error: g.reason, unknown: g.unknown})
	}
	return causes
}

// requestError is the error of one request within the error of an acquisition. It does not
// match what is true of the request only: that the request timed out, or that its outcome
// is unknown.
type requestError struct {
	error
	unknown bool // whether the lease was acquired is not known
}

func (r *requestError) Is(target error) bool {
	switch target {
	case transport.ErrOutcomeUnknown, context.Canceled, context.DeadlineExceeded:
		return false
	case transport.ErrNotSent:
		return !r.unknown && errors.Is(r.error, target)
	}
	return errors.Is(r.error, target)
}

func (r *requestError) As(target any) bool { return errors.As(r.error, target) }

// classOf returns the same text for errors that differ in a number or a name only, so that
// one cause is reported once and not for each attempt.
func classOf(err error) string {
	var refused *transport.RefusedError
	var rejected *transport.RejectedError
	var connect *transport.ConnectError
	var disconnect *transport.DisconnectError
	switch {
	case errors.As(err, &refused):
		if errors.Unwrap(refused) == nil {
			return "refused with an unknown text"
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
