package transport

import (
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

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
	// ErrClosed: the client was closed. No refusal of the broker closes a client that was
	// connected once.
	ErrClosed = errors.New("the client is closed")
	// ErrSessionTakenOver: another connection uses the same client id. The
	// client gives up for good: two that fight for one name would disconnect
	// each other for ever. Give each process a client id of its own, and within a
	// process each library that connects; see [FromEnvWithSuffix].
	ErrSessionTakenOver = errors.New("another connection took over this client id; give each process, and each library in it that connects, its own")
	// ErrNoStore: the broker has nobody who takes requests to a state store. Together
	// with ErrOutcomeUnknown it is a guess: the broker took a request, nobody answered
	// it in time, and nobody has answered since the connection was made.
	ErrNoStore = errors.New("no state store answers on this broker")
	// ErrPacketTooLarge: the broker takes no packet as large as this request makes. It
	// was not applied. Choose a smaller value, or let the broker take more. Together with
	// ErrOutcomeUnknown: the broker ended the connection for this reason, perhaps because
	// of another request; or this client did, since the broker sent a packet that is larger
	// than Options.MaxPacketSize. The text says which, and names the sizes.
	ErrPacketTooLarge = errors.New("the packet is too large")
	// ErrServerBusy: the broker takes no connection now, or ended one because it has too
	// much to do. The client goes on trying; the error is seen where somebody waits.
	ErrServerBusy = errors.New("the broker is busy")
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

	// ErrOtherStore: the request was bound to a store (see [Binding]), and another one
	// is there now. It was not applied. What the earlier store granted is void.
	ErrOtherStore error = protocol.OtherStore
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
// store's rules, turned a request away. It was not applied, unless the error matches
// ErrOutcomeUnknown too: a status of 408 (timeout) or of 500 and above says that
// something failed, and not whether that was before or after the store acted.
type RejectedError struct {
	// Code is the MQTT reason code of the acknowledgement (0x80 and above), or
	// the status of the reply (400 and above).
	Code int
	// Reason is the peer's own text, possibly empty.
	Reason string
}

// Error names the code and the reason.
func (e *RejectedError) Error() string {
	text := fmt.Sprintf("rejected in front of the store (status %d)", e.Code)
	if e.Code < 0x100 {
		text = fmt.Sprintf("rejected by the broker (MQTT reason code 0x%02X)", e.Code)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Is lets the broker's reasons be handled like the store's: it matches ErrNotAuthorized,
// ErrQuotaExceeded and ErrPacketTooLarge.
func (e *RejectedError) Is(target error) bool { return isReason(e.Code, target) }

// DisconnectError says that the broker ended the connection, and why. Where it did so
// because of a request (too large, over quota), it cannot be told which: what became of
// those under way is unknown.
type DisconnectError struct {
	// Code is the reason code of DISCONNECT [MQTT-3.14.2.1].
	Code byte
	// Reason is the broker's own text, possibly empty.
	Reason string
}

// Error names the code and the reason.
func (e *DisconnectError) Error() string {
	text := fmt.Sprintf("the broker ended it (MQTT reason code 0x%02X)", e.Code)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Is matches ErrNotAuthorized, ErrQuotaExceeded, ErrPacketTooLarge and ErrServerBusy.
func (e *DisconnectError) Is(target error) bool { return isReason(int(e.Code), target) }

// ConnectError is the broker's refusal of a connection.
type ConnectError struct {
	// Code is the reason code of CONNACK [MQTT-3.2.2.2].
	Code byte
	// Reason is the broker's own text, possibly empty.
	Reason string
}

// Error names the code and what to do about it, where that is known.
func (e *ConnectError) Error() string {
	text := fmt.Sprintf("the broker refused the connection (MQTT reason code 0x%02X)", e.Code)
	switch e.Code {
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized:
		text += "; check user name and password, and what the broker allows this client id"
	case packets.ConnackBadAuthenticationMethod:
		text += "; it takes no " + methodServiceAccount + ": authenticate in another way than with a token"
	case codeServerUnavailable, codeServerBusy, codeRateExceeded:
		text += "; it is busy"
	case codeQuotaExceeded:
		text += "; a quota of it is used up"
	case packets.ConnackUnsupportedProtocolVersion:
		text += "; it must speak MQTT 5"
	case packets.ConnackInvalidClientID:
		text += "; choose another client id"
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Is matches ErrNotAuthorized, ErrQuotaExceeded, ErrPacketTooLarge and ErrServerBusy.
func (e *ConnectError) Is(target error) bool { return isReason(int(e.Code), target) }

// permanent reports whether another attempt would meet the same refusal, as far as it can
// be known of a broker that never took this client.
func (e *ConnectError) permanent() bool {
	switch e.Code {
	case packets.ConnackUnsupportedProtocolVersion, packets.ConnackInvalidClientID,
		packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized,
		packets.ConnackBanned, packets.ConnackBadAuthenticationMethod:
		return true
	}
	return false
}

// temporary reports whether the refusal says nothing of what was in the CONNECT packet.
func (e *ConnectError) temporary() bool {
	switch e.Code {
	case packets.ConnackServerUnavailable, packets.ConnackServerBusy, packets.ConnackConnectionRateExceeded:
		return true
	}
	return false
}

func refusedConnect(connack *paho.Connack) *ConnectError {
	refused := &ConnectError{Code: connack.ReasonCode}
	if connack.Properties != nil {
		refused.Reason = connack.Properties.ReasonString
	}
	return refused
}

// isReason reports whether an MQTT reason code means what a sentinel says.
func isReason(code int, target error) bool {
	switch code {
	case codeNotAuthorized:
		return target == ErrNotAuthorized
	case codePacketTooLarge:
		return target == ErrPacketTooLarge
	case codeQuotaExceeded:
		return target == ErrQuotaExceeded
	case codeServerUnavailable, codeServerBusy, codeRateExceeded:
		return target == ErrServerBusy
	}
	return false
}

// Reason codes that mean the same in every packet that has them [MQTT-2.4].
const (
	codeNotAuthorized     = 0x87
	codeServerUnavailable = 0x88
	codeServerBusy        = 0x89
	codePacketTooLarge    = 0x95
	codeQuotaExceeded     = 0x97
	codeRateExceeded      = 0x9F
)

// notSent marks a cause as one that kept a request from leaving.
func notSent(cause error) error { return fmt.Errorf("%w: %w", ErrNotSent, cause) }

// unknown marks a cause as one that hid what became of a request.
func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause) }
