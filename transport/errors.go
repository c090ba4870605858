package transport

import (
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
)

// Errors that say what happened to a request. Test for them with errors.Is.
var (
	// ErrOutcomeUnknown: no reply came. The store may have applied the request, or may
	// yet. A repetition is a new request.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNotSent: the request was not sent, usually because there was no connection until
	// the caller's context ended. The store did not and will not apply it.
	ErrNotSent = errors.New("not sent")
	// ErrClosed: the program closed the client. No refusal of the broker ends a client that
	// was connected once.
	ErrClosed = errors.New("the client is closed")
	// ErrSessionTakenOver: another connection uses the same client id. The client ends: two
	// clients with one id would disconnect each other forever. Give each process a client
	// id of its own, and within a process each library that connects; see
	// [FromEnv].
	ErrSessionTakenOver = errors.New("another connection took over this client id; " +
		"give each process, and each library in it that connects, its own")
	// ErrNoStore: no state store is subscribed to requests on the broker. Together with
	// ErrOutcomeUnknown it is a guess: the broker took a request, no reply came in time,
	// and no reply has come since the connection was made.
	ErrNoStore = errors.New("no state store answers on this broker")
	// ErrPacketTooLarge: the request makes a packet that is larger than the broker takes.
	// It was not applied. Choose a smaller value, or raise the broker's limit. Together
	// with ErrOutcomeUnknown: the broker ended the connection for this reason, perhaps
	// because of another request; or this client did, because the broker sent a packet
	// larger than Options.MaxPacketSize. The text says which, and names the sizes.
	ErrPacketTooLarge = mqtt.ErrTooLarge
	// ErrServerBusy: the broker is overloaded, and refused a connection or ended one. The
	// client goes on trying; requests that wait meanwhile fail with this error. Together with
	// ErrOutcomeUnknown and a [*RejectedError]: too much waits for the journal of the store, which
	// did not take the request. Repeat it later.
	ErrServerBusy = errors.New("the broker is busy")
	// ErrUseAnotherServer: the broker sends its clients to another server: it stands by, or
	// has moved. The client goes on to its next address at once, and after a pause when
	// all of them do so.
	ErrUseAnotherServer = errors.New("the broker refers to another server")
	// ErrBadReply: the reply cannot be read, or does not fit the request.
	ErrBadReply = errors.New("unexpected reply")
	// ErrConditionFailed: the condition of a conditional Set or VDel was not met;
	// nothing changed.
	ErrConditionFailed = errors.New("the condition was not met")
)

// Refusals of the store that a program or its operator can do something about. A [*RefusedError] matches
// one of them, unless its text says that the request itself makes no sense.
var (
	ErrTimestampTooFarAhead    error = protocol.TimestampTooFarAhead
	ErrFencingTokenRequired    error = protocol.FencingTokenRequired
	ErrFencingTokenTooFarAhead error = protocol.FencingTokenTooFarAhead
	ErrFencingTokenLower       error = protocol.FencingTokenLower
	ErrQuotaExceeded           error = protocol.QuotaExceeded
	ErrNotAuthorized           error = protocol.NotAuthorized
	ErrKeyLengthZero           error = protocol.KeyLengthZero

	// ErrKeyTooLong: the key is too long to be watched, as MQTT bounds the topic of its notifications.
	// The client sends no request for it. A store of ours refuses those of other clients.
	ErrKeyTooLong error = protocol.KeyTooLong

	// Only a store in strict mode has these.
	ErrFencingTokenNeverIssued error = protocol.FencingTokenNeverIssued
	ErrLockRule                error = protocol.LockRule

	// ErrOtherStore: the request was bound to a store (see [Binding]), and another one
	// answered. It was not applied. The leases that the earlier store granted are void.
	ErrOtherStore error = protocol.OtherStore
)

// RefusedError is the store's refusal of a request. The request changed nothing.
type RefusedError struct {
	// Text is the store's text, without the "-ERR " prefix.
	Text string
}

// Error contains the store's text, in one line. A long one is cut.
func (e *RefusedError) Error() string { return "refused by the store: " + mqtt.Shown(e.Text) }

// Unwrap returns the sentinel for the text, if the protocol lists it.
func (e *RefusedError) Unwrap() error {
	if refusal, ok := protocol.RefusalFor(e.Text); ok {
		return refusal
	}
	return nil
}

// RejectedError says that the broker, or the service in front of the store, rejected a
// request. The request was not applied, unless the error matches ErrOutcomeUnknown too: a
// status of 408 (timeout) or of 500 and above says that something failed, but not whether
// before or after the store applied the request.
type RejectedError struct {
	// Code is the MQTT reason code of the acknowledgement (0x80 and above), or
	// the status of the reply (400 and above).
	Code int
	// Reason is the text with it, or empty.
	Reason string
}

// Error names the code and the reason.
func (e *RejectedError) Error() string {
	text := fmt.Sprintf("rejected in front of the store (status %d)", e.Code)
	if e.Code < 0x100 {
		text = fmt.Sprintf("rejected by the broker (MQTT reason code 0x%02X)", e.Code)
	}
	return withReason(text, e.Reason)
}

// withReason adds the text of the broker or the store, if there is one.
func withReason(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + ": " + mqtt.Shown(reason)
}

// Is matches ErrNotAuthorized, ErrQuotaExceeded and ErrPacketTooLarge, so that a program can
// handle the broker's reasons like the store's. A status of 503 (unavailable) matches ErrServerBusy: a
// store has it where too much waits for its disk.
func (e *RejectedError) Is(target error) bool {
	return target == reasons[e.Code].sentinel || e.Code == statusUnavailable && target == ErrServerBusy
}

const statusUnavailable = 503 // protocol.StatusUnavailable

// ConnectionError says why the broker refused a connection, or ended one. If it ended one because of a
// request (too large, over quota), the client cannot know which one: the outcome of all requests
// under way is unknown.
type ConnectionError struct {
	// Ended says that there was a connection, and that Code is of its DISCONNECT [MQTT-3.14.2.1];
	// otherwise it is of a CONNACK [MQTT-3.2.2.2].
	Ended bool
	// Code is the reason code.
	Code byte
	// Reason is the broker's text, or empty.
	Reason string
	// ServerReference names the server that the broker refers to, or is empty. The client does not follow it.
	ServerReference string
}

// Error names the code and, for a refusal with a known one, what to do about it.
func (e *ConnectionError) Error() string {
	text := fmt.Sprintf("the broker refused the connection (MQTT reason code 0x%02X)", e.Code)
	if e.Ended {
		text = fmt.Sprintf("the broker ended the connection (MQTT reason code 0x%02X)", e.Code)
	} else if cure := reasons[int(e.Code)].cure; cure != "" {
		text += "; " + cure
	}
	switch {
	case !errors.Is(e, ErrUseAnotherServer):
	case e.ServerReference == "":
		text += "; it refers to another server"
	default:
		text += fmt.Sprintf("; it refers to another server, %q", mqtt.Shown(e.ServerReference))
	}
	return withReason(text, e.Reason)
}

// A reason is what is known of a reason code of MQTT. The code has the same meaning in all packets [MQTT-2.4].
type reason struct {
	sentinel error  // that errors with the code match; nil: none
	cure     string // of the refusal of a connection, or what it means; may be empty
	lasts    bool   // a broker that never accepted this client is likely to refuse the next attempt too
}

const credentialsCure = "check the username, the password and the broker's rules for this client id"

var reasons = map[int]reason{
	packets.ConnackUnsupportedProtocolVersion: {cure: "it must speak MQTT 5", lasts: true},
	packets.ConnackInvalidClientID:            {cure: "choose another client id", lasts: true},
	packets.ConnackBadUsernameOrPassword:      {cure: credentialsCure, lasts: true},
	packets.ConnackNotAuthorized:              {ErrNotAuthorized, credentialsCure, true},
	packets.ConnackServerUnavailable:          {ErrServerBusy, "it is busy", false},
	packets.ConnackServerBusy:                 {ErrServerBusy, "it is busy", false},
	packets.ConnackBanned:                     {lasts: true},
	packets.ConnackBadAuthenticationMethod: {
		cure: "it does not know the method " + methodServiceAccount + ": authenticate without a token", lasts: true,
	},
	packets.ConnackPacketTooLarge:         {sentinel: ErrPacketTooLarge},
	packets.ConnackQuotaExceeded:          {sentinel: ErrQuotaExceeded, cure: "one of its quotas is used up"},
	packets.ConnackUseAnotherServer:       {sentinel: ErrUseAnotherServer},
	packets.ConnackServerMoved:            {sentinel: ErrUseAnotherServer},
	packets.ConnackConnectionRateExceeded: {ErrServerBusy, "it is busy", false},
}

// Is matches ErrNotAuthorized, ErrQuotaExceeded, ErrPacketTooLarge, ErrServerBusy and
// ErrUseAnotherServer.
func (e *ConnectionError) Is(target error) bool { return target == reasons[int(e.Code)].sentinel }

// notSent says that a request was not sent because of cause.
func notSent(cause error) error { return fmt.Errorf("%w: %w", ErrNotSent, cause) }

// unknown says that the outcome of a request is unknown because of cause.
func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause) }

// isRefusal reports whether the store or the broker refused the request, or would, so that a
// repetition would be refused too.
func isRefusal(err error) bool {
	var refused *RefusedError
	var rejected *RejectedError
	return (errors.As(err, &refused) || errors.As(err, &rejected) || errors.Is(err, ErrKeyTooLong)) &&
		!errors.Is(err, ErrOutcomeUnknown)
}
