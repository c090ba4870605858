package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurelock/tenure/transport"
)

// waitReason is why one Acquire still waits: the error of the latest request, and the last
// known holder. A nil waitReason belongs to TryAcquire, and failed ignores it.
type waitReason struct {
	lease    *Lease
	err      error  // of the latest request; nil if the store answered it
	reported string // the class of the err that Options.OnWaiting got last; "" for nil
	held     bool   // another holder has the lease
	holder   Holder // not Held if it is not known
}

// failed notes why a request failed, and returns whether that is another class of error than
// before.
func (r *waitReason) failed(err error) (changed bool) {
	if r == nil {
		return false
	}
	r.err = err
	return r.report(classOf(err))
}

// answered notes that the store answered.
func (r *waitReason) answered() {
	r.err = nil
	r.report("")
}

func (r *waitReason) report(class string) (changed bool) {
	if class == r.reported {
		return false
	}
	r.reported = class
	if r.lease.options.OnWaiting != nil {
		r.lease.options.OnWaiting(r.err)
	}
	return true
}

// heard notes what the key holds.
func (r *waitReason) heard(entry transport.Entry) {
	r.held, r.holder = entry.Exists, r.lease.heard(entry)
}

// isHeld notes that the store refused because another holder has the lease.
func (r *waitReason) isHeld() {
	if !r.held {
		r.holder = Holder{} // the refusal does not name it
	}
	r.held = true
	r.answered()
}

// gaveUp returns the error of an Acquire whose ctx ended. err is the error of its latest attempt.
func (r *waitReason) gaveUp(ctx context.Context, err error) error {
	g := &gaveUpError{cause: context.Cause(ctx), reason: r.err, unknown: errors.Is(err, transport.ErrOutcomeUnknown)}
	if r.held {
		g.held = &HeldError{Lease: r.lease.name, Holder: r.holder}
	}
	return g
}

// gaveUpError is the error of an acquisition that its caller gave up. It matches the cause,
// the error of the latest request, and ErrHeld if another holder had the lease.
type gaveUpError struct {
	cause   error      // of the end of the context
	reason  error      // of the latest request; nil if the store answered it
	held    *HeldError // nil if the lease was free by the latest answer
	unknown bool       // it is not known whether the lease was acquired
}

func (g *gaveUpError) Error() string {
	text := g.cause.Error()
	if g.unknown {
		text = transport.ErrOutcomeUnknown.Error() + ": " + text
	}
	if notGranted := (*HeldError)(nil); errors.As(g.reason, &notGranted) {
		text += "; the latest request: " + notGranted.text()
	} else if g.reason != nil {
		text += fmt.Sprintf("; the latest request failed: %v", g.reason)
	}
	if g.held != nil {
		text += "; when last heard of: " + g.held.text()
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
// match what is true of the request alone: that the request timed out, or that its outcome
// is unknown.
type requestError struct {
	error
	unknown bool // it is not known whether the lease was acquired
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
