package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/transport"
)

// Why a tenure ended. Test context.Cause of its context, or an error of
// [Tenure.Token], with errors.Is.
var (
	// ErrReleased: Release was called. The error that Release returns says whether the store has freed the lease.
	ErrReleased = errors.New("given up by its holder")
	// ErrLost: the store has another holder.
	ErrLost = errors.New("another holder has the lease")
	// ErrDeadlinePassed: no renewal succeeded in time.
	ErrDeadlinePassed = errors.New("the deadline passed without a renewal")
	// ErrFencedOut: a protected resource refused the token. Usually it has seen a newer one.
	ErrFencedOut = errors.New("fenced out: the token was refused")
	// ErrDeleted: the store's key is gone, and this process did not release it. Another
	// client deleted it, or it expired early.
	ErrDeleted = errors.New("the lease was deleted from the store")
	// ErrStoreReplaced: the store that answers is not the one that granted the lease. It may
	// have been restarted without its data. It knows neither the lease nor the fences of the
	// keys that were written under its token.
	ErrStoreReplaced = errors.New("the store was replaced by one that does not know the lease")
	// ErrConnectionLost: the connection dropped, and Options.EndOnDisconnect or
	// Options.InstantFailover ends the tenure with it.
	ErrConnectionLost = errors.New("the connection was lost")
)

// ErrHeld matches a [*HeldError].
var ErrHeld = errors.New("held by another")

// HeldError says that a lease could not be acquired because it is held, or because the
// store has just started and grants no lease yet (statestore.Options.HoldOff).
type HeldError struct {
	// Holder is the holder a moment ago. Held is false if the holder is not known, or if the
	// store grants no lease yet.
	Holder Holder
}

// shownName is how many characters of a holder's name errors and logs show. Another client has chosen it: a
// value may be as long as a packet.
const shownName = 512

// Error names the holder. It shows the beginning of a long name.
func (e *HeldError) Error() string {
	if !e.Holder.Held {
		return "not granted: another holder had it a moment ago, or the store has just started and grants no lease yet " +
			"(its hold-off)"
	}
	return fmt.Sprintf("held by %.*q", shownName, e.Holder.Name)
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// isPermanent reports whether waiting is useless after err: the client is closed or
// taken over, or the program must change.
func isPermanent(err error) bool {
	var rejected *transport.RejectedError
	var refused *transport.RefusedError
	return isTerminal(err) ||
		errors.As(err, &rejected) && errors.Is(rejected, transport.ErrPacketTooLarge) ||
		errors.As(err, &refused) && slices.Contains(permanentRefusals, errors.Unwrap(refused))
}

var permanentRefusals = []error{protocol.SyntaxError, protocol.UnknownCommand, protocol.WrongNumberOfArguments,
	transport.ErrKeyLengthZero, protocol.MissingTimestamp, protocol.MalformedTimestamp, transport.ErrLockRule}

// isTerminal reports whether the client is closed or taken over: no request of it can succeed.
func isTerminal(err error) bool {
	return errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver)
}

// isRefusal reports whether err is a refusal by the store or the broker, other than for a
// quota, which may have space later.
func isRefusal(err error) bool {
	var refused *transport.RefusedError
	var rejected *transport.RejectedError
	return (errors.As(err, &refused) || errors.As(err, &rejected)) &&
		!errors.Is(err, transport.ErrQuotaExceeded) && !errors.Is(err, transport.ErrOutcomeUnknown)
}

// requestError is the error of one request within the error of an acquisition. It does not match
// what is true of that request alone: that it timed out, or that its outcome is unknown.
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
// one cause is reported once and not for each attempt. The class of nil is "".
func classOf(err error) string {
	var refused *transport.RefusedError
	var rejected *transport.RejectedError
	var connection *transport.ConnectionError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused) && errors.Unwrap(refused) != nil:
		return refused.Text
	case errors.As(err, &rejected):
		return fmt.Sprint("rejected ", rejected.Code)
	case errors.As(err, &connection):
		return fmt.Sprint("connection ", connection.Ended, connection.Code)
	}
	for _, class := range []error{transport.ErrNoStore, transport.ErrNotSent, transport.ErrBadReply,
		transport.ErrOutcomeUnknown} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return "other"
}

// asNotSent turns the error of a GET into the error of the request that should have followed
// and was not sent. An unknown outcome of the GET is not an unknown outcome of that request.
func asNotSent(err error) error {
	if !errors.Is(err, transport.ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", transport.ErrNotSent, &requestError{error: err, unknown: true})
}
