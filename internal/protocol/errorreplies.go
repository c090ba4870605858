package protocol

import (
	"errors"
	"slices"
	"strings"
)

// Refusal is the text of an error reply without its "-ERR " prefix. It is an error, so that
// the store sends it and the client's callers compare with it by errors.Is.
type Refusal string

// Error returns the text as the store sends it.
func (r Refusal) Error() string { return string(r) }

// The twelve refusals of the protocol.
const (
	TimestampTooFarAhead Refusal = "the request timestamp is too far in the future; ensure that the client and " +
		"broker system clocks are synchronized"
	FencingTokenRequired    Refusal = "a fencing token is required for this request"
	FencingTokenTooFarAhead Refusal = "the request fencing token timestamp is too far in the future; ensure that the " +
		"client and broker system clocks are synchronized"
	FencingTokenLower Refusal = "the request fencing token is a lower version than the fencing token protecting " +
		"the resource"
	QuotaExceeded          Refusal = "the quota has been exceeded"
	SyntaxError            Refusal = "syntax error"
	NotAuthorized          Refusal = "not authorized"
	UnknownCommand         Refusal = "unknown command"
	WrongNumberOfArguments Refusal = "wrong number of arguments"
	MissingTimestamp       Refusal = "missing timestamp"
	MalformedTimestamp     Refusal = "malformed timestamp"
	KeyLengthZero          Refusal = "the key length is zero"
)

// Refusals of a store in strict mode, which is an extension of this project.
const (
	FencingTokenNeverIssued Refusal = "the request fencing token is above every version that this store has issued"
	LockRule                Refusal = "a key under a lock prefix needs an expiry (PX), a value that is the client id, a " +
		"colon and a text without a colon, and no fencing token; release it with VDEL"
)

// OtherStore refuses a request whose PropertyStore is not the identity of the store. It is an
// extension of this project.
const OtherStore Refusal = "the request names another store"

// KeyTooLong refuses KEYNOTIFY for a key that [CanNotify] says no to. It is an extension of this project.
const KeyTooLong Refusal = "the key is too long to be watched: the topic of its notifications would have more than " +
	"65535 bytes"

// fencingTokenLowerAsPublished is a second spelling of FencingTokenLower in the published
// description of the protocol.
const fencingTokenLowerAsPublished = "the request fencing token is a lower version that the fencing token protecting " +
	"the resource"

var refusals = []Refusal{
	TimestampTooFarAhead, FencingTokenRequired, FencingTokenTooFarAhead, FencingTokenLower, QuotaExceeded, SyntaxError,
	NotAuthorized, UnknownCommand, WrongNumberOfArguments, MissingTimestamp, MalformedTimestamp, KeyLengthZero,
	FencingTokenNeverIssued, LockRule, OtherStore, KeyTooLong,
}

const (
	errorPrefix = "ERR "
	// errorPrefixKeyNotify is how a KEYNOTIFY failure is documented.
	errorPrefixKeyNotify = "ERR: "
)

// MaxForced bounds the text of a forced release in bytes (docs/protocol.md §7.7).
const MaxForced = 256

// ErrorText returns the text of an error reply without any of the prefixes that stores send.
func ErrorText(reply string) string {
	if text, ok := strings.CutPrefix(reply, errorPrefixKeyNotify); ok {
		return text
	}
	return strings.TrimPrefix(reply, errorPrefix)
}

// RefusalFor returns the refusal with this text, and false for any other text.
func RefusalFor(text string) (Refusal, bool) {
	if text == fencingTokenLowerAsPublished {
		return FencingTokenLower, true
	}
	if !slices.Contains(refusals, Refusal(text)) {
		return "", false
	}
	return Refusal(text), true
}

// Number returns a number from 1 for each refusal of this package, so that a store can remember
// it in a byte, and 0 for any other. It may change with each version of this package.
func (r Refusal) Number() uint8 { return uint8(slices.Index(refusals, r) + 1) }

// RefusalNumber returns the refusal with this Number, and false if there is none.
func RefusalNumber(n uint8) (Refusal, bool) {
	if n == 0 || int(n) > len(refusals) {
		return "", false
	}
	return refusals[n-1], true
}

// Line returns the text of the error reply.
func (r Refusal) Line() string { return errorPrefix + string(r) }

// KeyNotifyLine returns the text of the error reply to KEYNOTIFY in the documented dialect.
func (r Refusal) KeyNotifyLine() string { return errorPrefixKeyNotify + string(r) }

// TokenRefused reports whether err is a refusal of the fencing token itself, or of the store that it
// was meant for: the tenure that has the token is over. FencingTokenRequired does not count. It means
// that something between client and store removed the token.
func TokenRefused(err error) bool {
	return errors.Is(err, FencingTokenLower) || errors.Is(err, FencingTokenNeverIssued) ||
		errors.Is(err, OtherStore) || errors.Is(err, FencingTokenTooFarAhead)
}
