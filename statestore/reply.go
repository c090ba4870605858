package statestore

import (
	"errors"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

// Dialect chooses between two ways of writing the same answer. Clients accept
// both.
type Dialect uint8

const (
	// Deployed is what the stores in the field send, and the default.
	Deployed Dialect = iota
	// Documented is what the published description of the protocol says.
	Documented
)

// Outcome is the kind of a reply.
type Outcome uint8

const (
	// Refused: the request was rejected, for the reason in Reply.Err, and
	// changed nothing.
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
	// Expired: the request came too late to be applied. It changed nothing, and
	// has no reply.
	Expired
)

// String names the outcome.
func (o Outcome) String() string {
	return [...]string{"refused", "ok", "condition failed", "found", "missing", "deleted", "nothing there", "expired"}[o]
}

// Reply is the store's answer to one command.
type Reply struct {
	Verb    Verb
	Outcome Outcome
	// Value is what a GET found.
	Value string
	// Version goes out as __ts; the zero Timestamp means that the reply has
	// none. It is the version of the value that was set, read or deleted, or
	// that stood in the way of a conditional SET. In a refusal because a timestamp
	// or a token is too far ahead it is the store's clock.
	Version hlc.Timestamp
	// Err says why a command was refused; its text is the protocol's.
	Err error
}

// Append appends the reply's payload to dst; nothing for Expired.
func (r Reply) Append(dst []byte, dialect Dialect) []byte {
	switch r.Outcome {
	case OK:
		return resp3.AppendSimple(dst, "OK")
	case ConditionFailed:
		if dialect == Documented {
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
	if r.Verb == VerbKeyNotify && dialect == Documented {
		return resp3.AppendError(dst, refusal.KeyNotifyLine())
	}
	return resp3.AppendError(dst, refusal.Line())
}

// Notification tells one client about one change of a key it watches.
type Notification struct {
	Client string
	// Change is the same for all watchers of the key, so that what does not depend on the
	// client can be made once for all of them.
	*Change
}

// Change is what happened to a key. It must not be modified.
type Change struct {
	Key string
	// Deleted is true when the key went away: DEL, VDEL or expiry.
	Deleted bool
	// Value is the new value.
	Value string
	// Version is that of the new value, or of the value that went away.
	Version hlc.Timestamp
}

// Append appends the payload of the change's notifications to dst.
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
