package protocol

import "strings"

// Refusal is the text of an error reply, without its "-ERR " prefix. It is an
// error itself, so that one spelling serves the store, which sends it, and the
// client, whose callers branch on it with errors.Is.
type Refusal string

// Error returns the text as the store sends it.
func (r Refusal) Error() string { return string(r) }

// The twelve refusals of the protocol.
const (
	TimestampTooFarAhead    Refusal = "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	FencingTokenRequired    Refusal = "a fencing token is required for this request"
	FencingTokenTooFarAhead Refusal = "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	FencingTokenLower       Refusal = "the request fencing token is a lower version than the fencing token protecting the resource"
	QuotaExceeded           Refusal = "the quota has been exceeded"
	SyntaxError             Refusal = "syntax error"
	NotAuthorized           Refusal = "not authorized"
	UnknownCommand          Refusal = "unknown command"
	WrongNumberOfArguments  Refusal = "wrong number of arguments"
	MissingTimestamp        Refusal = "missing timestamp"
	MalformedTimestamp      Refusal = "malformed timestamp"
	KeyLengthZero           Refusal = "the key length is zero"
)

// Refusals of a store in strict mode, which is an extension of ours: the protocol
// lists no text for what it forbids.
const (
	FencingTokenNeverIssued Refusal = "the request fencing token is above every version that this store has issued"
	LockRule                Refusal = "a key under a lock prefix needs an expiry (PX), a value that begins with the client id and a colon, and no fencing token; release it with VDEL"
)

// OtherStore refuses a request whose PropertyStore is not the identity of the store. It
// is an extension of ours.
const OtherStore Refusal = "the request names another store"

// fencingTokenLowerAsPublished is a second spelling of FencingTokenLower that
// the public description of the protocol contains.
const fencingTokenLowerAsPublished = "the request fencing token is a lower version that the fencing token protecting the resource"

var refusals = map[string]Refusal{
	string(TimestampTooFarAhead):    TimestampTooFarAhead,
	string(FencingTokenRequired):    FencingTokenRequired,
	string(FencingTokenTooFarAhead): FencingTokenTooFarAhead,
	string(FencingTokenLower):       FencingTokenLower,
	fencingTokenLowerAsPublished:    FencingTokenLower,
	string(QuotaExceeded):           QuotaExceeded,
	string(SyntaxError):             SyntaxError,
	string(NotAuthorized):           NotAuthorized,
	string(UnknownCommand):          UnknownCommand,
	string(WrongNumberOfArguments):  WrongNumberOfArguments,
	string(MissingTimestamp):        MissingTimestamp,
	string(MalformedTimestamp):      MalformedTimestamp,
	string(KeyLengthZero):           KeyLengthZero,
	string(FencingTokenNeverIssued): FencingTokenNeverIssued,
	string(LockRule):                LockRule,
	string(OtherStore):              OtherStore,
}

const (
	errorPrefix = "ERR "
	// errorPrefixKeyNotify is how a KEYNOTIFY failure is documented.
	errorPrefixKeyNotify = "ERR: "
)

// ErrorText returns the text of an error reply without its prefix, in any of
// the forms that stores send.
func ErrorText(reply string) string {
	for _, prefix := range []string{errorPrefixKeyNotify, errorPrefix} {
		if text, ok := strings.CutPrefix(reply, prefix); ok {
			return text
		}
	}
	return reply
}

// RefusalFor returns the refusal with this text, and false for a text that the
// protocol does not list.
func RefusalFor(text string) (Refusal, bool) {
	refusal, ok := refusals[text]
	return refusal, ok
}

// Line returns the refusal as the text of an error reply.
func (r Refusal) Line() string { return errorPrefix + string(r) }

// KeyNotifyLine returns the refusal as the documented dialect writes it in
// reply to KEYNOTIFY.
func (r Refusal) KeyNotifyLine() string { return errorPrefixKeyNotify + string(r) }
