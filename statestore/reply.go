package statestore

import (
	"errors"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

// Dialect is one of two spellings of replies and notifications (docs/protocol.md §6). Our client
// accepts both.
type Dialect uint8

const (
	// Auto is for a store that answers each client in the client's own dialect: see DialectOf.
	Auto Dialect = iota
	// Deployed is the spelling of deployed stores and clients.
	Deployed
	// Documented is the spelling of the published description of the protocol.
	Documented
)

// DialectOf returns the dialect of a client that sent a request with or without the user property
// __protVer, which all deployed clients send.
func DialectOf(protocolVersion bool) Dialect {
	if protocolVersion {
		return Deployed
	}
	return Documented
}

func (s *Store) dialectOf(command *Command) Dialect {
	if s.options.Dialect != Auto {
		return s.options.Dialect
	}
	return command.Dialect
}

// Outcome is the kind of a reply.
type Outcome uint8

const (
	// Refused: the store refused the request for the reason in Reply.Err. Nothing
	// changed.
	Refused Outcome = iota
	// OK: a SET or a KEYNOTIFY was applied.
	OK
	// ConditionFailed: NX, NEX or the value of a VDEL did not match.
	ConditionFailed
	// Found: a GET found Reply.Value.
	Found
	// Missing: a GET found nothing.
	Missing
	// Deleted: a DEL or VDEL deleted the key.
	Deleted
	// NothingThere: there was no key to delete, or no watch to stop.
	NothingThere
	// Expired: the request came after its message expiry. Nothing changed, and there is
	// no reply.
	Expired
)

var outcomeNames = []string{"refused", "ok", "condition failed", "found", "missing", "deleted",
	"nothing there", "expired"}

// String returns the outcome in words.
func (o Outcome) String() string { return nameOf("Outcome", outcomeNames, o) }

// MarshalText implements [encoding.TextMarshaler]; it returns the text of String.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Reply is the store's reply to one command.
type Reply struct {
	// Verb is the verb of the command, on which the form of the reply depends.
	Verb Verb
	// Dialect is how Append writes the reply.
	Dialect Dialect
	// Outcome is what the store did.
	Outcome Outcome
	// Forced is the end of a lease that the command took from another client; nil: it did not. It is not sent, and
	// the reply to a second delivery does not have it.
	Forced *HolderChange
	// Value is the value that a GET found.
	Value string
	// Version is the __ts of the reply; the reply has none if it is zero. It is the
	// version of the value that was set, read or deleted, or for which the condition of
	// a SET failed. If the store refuses a timestamp or a token as too far ahead, it is
	// the store's clock.
	Version hlc.Timestamp
	// Err is the reason of a refusal; its text is the protocol's.
	Err error
}

// Append appends the reply's payload to dst and returns the extended slice. It appends
// nothing for Expired.
func (r Reply) Append(dst []byte) []byte {
	switch r.Outcome {
	case OK:
		return resp3.AppendSimple(dst, "OK")
	case ConditionFailed:
		if r.Dialect == Documented {
			return append(dst, "-1\r\n"...)
		}
		return resp3.AppendInteger(dst, -1)
	case Found:
		return resp3.AppendBulk(dst, r.Value)
	case Missing:
		return resp3.AppendNull(dst)
	case Deleted:
		return resp3.AppendInteger(dst, 1)
	case NothingThere:
		return resp3.AppendInteger(dst, 0)
	case Expired:
		return dst
	}
	refusal := protocol.SyntaxError
	errors.As(r.Err, &refusal)
	if r.Verb == VerbKeyNotify && r.Dialect == Documented {
		return resp3.AppendError(dst, refusal.KeyNotifyLine())
	}
	return resp3.AppendError(dst, refusal.Line())
}

// Notification is the message for one client about a change of a key that it watches.
type Notification struct {
	// Client is the client id of the watcher.
	Client string
	// Dialect is how to write the change: in the dialect of the watcher's KEYNOTIFY.
	Dialect Dialect
	// Change is shared by the notifications of all watchers of the key, so that a caller
	// can encode it once for all of them.
	*Change
}

// Append appends the notification's payload to dst and returns the extended slice.
func (n Notification) Append(dst []byte) []byte { return n.Change.Append(dst, n.Dialect) }

// Change is a change of a key. It must not be modified.
type Change struct {
	// Key is the key that changed; any bytes.
	Key string
	// Deleted says that the key was removed: by DEL, VDEL or its expiry.
	Deleted bool
	// Value is the new value.
	Value string
	// Version is the version of the new value, or of the removed one.
	Version hlc.Timestamp
}

// Append appends the payload of the change's notifications in a dialect to dst, and returns the
// extended slice.
func (c *Change) Append(dst []byte, dialect Dialect) []byte {
	if c.Deleted {
		word := protocol.NotifyDelete
		if dialect == Documented {
			word = protocol.NotifyDel
		}
		return resp3.AppendCommand(dst, protocol.NotifyWord, word)
	}
	dst = resp3.AppendArray(dst, 4)
	dst = resp3.AppendBulk(dst, protocol.NotifyWord)
	dst = resp3.AppendBulk(dst, protocol.NotifySet)
	dst = resp3.AppendBulk(dst, protocol.NotifyValue)
	return resp3.AppendBulk(dst, c.Value)
}
