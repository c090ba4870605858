package transport

import (
	"errors"
	"fmt"

	"github.com/tenurelock/tenure/internal/protocol"
)

// Errors that say what happened to a request. Test for them with errors.Is.
var (
	// ErrOutcomeUnknown: the request may have been applied, or may still be.
	// Its reply never came. A repetition is a new request.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNotSent: the request never left, usually because the connection stayed
	// down for as long as the caller would wait. It was not and will not be
	// applied.
	ErrNotSent = errors.New("not sent")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrSessionTakenOver: another connection uses the same client id. The
	// client gives up for good: two that fight for one name would disconnect
	// each other for ever. Give each process a client id of its own.
	ErrSessionTakenOver = errors.New("another connection took over this client id; give each process its own")
	// ErrNoStore: the broker has nobody who takes requests to a state store.
	ErrNoStore = errors.New("no state store answers on this broker")
	// ErrBadReply: what came back is not a reply to what was asked.
	ErrBadReply = errors.New("unexpected reply")
	// ErrConditionFailed: the condition of a conditional Set or VDel was not met;
	// nothing changed.
	ErrConditionFailed = errors.New("the condition was not met")
)

// Refusals of the store. A [*RefusedError] matches one of them, unless the store
// sent a text that the protocol does not list.
var (
	ErrTimestampTooFarAhead    error = protocol.TimestampTooFarAhead
	ErrFencingTokenRequired    error = protocol.FencingTokenRequired
	ErrFencingTokenTooFarAhead error = protocol.FencingTokenTooFarAhead
	ErrFencingTokenLower       error = protocol.FencingTokenLower
	ErrQuotaExceeded           error = protocol.QuotaExceeded
	ErrSyntax                  error = protocol.SyntaxError
	ErrNotAuthorized           error = protocol.NotAuthorized
	ErrUnknownCommand          error = protocol.UnknownCommand
	ErrWrongNumberOfArguments  error = protocol.WrongNumberOfArguments
	ErrMissingTimestamp        error = protocol.MissingTimestamp
	ErrMalformedTimestamp      error = protocol.MalformedTimestamp
	ErrKeyLengthZero           error = protocol.KeyLengthZero

	// Of a store in strict mode only.
	ErrFencingTokenNeverIssued error = protocol.FencingTokenNeverIssued
	ErrLockRule                error = protocol.LockRule
)

// RefusedError is the store's refusal of a request, which changed nothing.
type RefusedError struct {
	// Text is what the store said, without the "-ERR " prefix.
	Text string
}

// Error returns the store's words.
func (e *RefusedError) Error() string { return "refused by the store: " + e.Text }

// Unwrap returns the sentinel for the text, if the protocol lists it.
func (e *RefusedError) Unwrap() error {
	if refusal, ok := protocol.RefusalFor(e.Text); ok {
		return refusal
	}
	return nil
}

// RejectedError says that the broker or the store's front, rather than the
// store's rules, turned a request away. It was not applied.
type RejectedError struct {
	// Code is the MQTT reason code of the acknowledgement (0x80 and above), or
	// the status of the reply (400 and above).
	Code int
	// Reason is the peer's own text, possibly empty.
	Reason string
}

// Error names the code and the reason.
func (e *RejectedError) Error() string {
	text := fmt.Sprintf("rejected before it reached the store (code %d)", e.Code)
	if e.Code < 0x100 {
		text = fmt.Sprintf("rejected by the broker (MQTT reason code 0x%02X)", e.Code)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Is lets the broker's "not authorized" be handled like the store's.
func (e *RejectedError) Is(target error) bool {
	const mqttNotAuthorized = 0x87
	return e.Code == mqttNotAuthorized && target == ErrNotAuthorized
}

// notSent marks a cause as one that kept a request from leaving.
func notSent(cause error) error { return fmt.Errorf("%w: %w", ErrNotSent, cause) }

// unknown marks a cause as one that hid what became of a request.
func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause) }
