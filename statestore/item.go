package statestore

import (
	"errors"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

var (
	// ErrCorrupt matches the errors of Decode and Restore for a record whose bytes are not
	// those that a store wrote.
	ErrCorrupt = errors.New("the record is corrupt")
	// ErrNewerFormat matches the errors of Decode and Restore for a record that a newer
	// version of this package wrote.
	ErrNewerFormat = errors.New("the record has a newer format")
)

// Kind is what a record is about.
type Kind uint8

// The kinds of records.
const (
	KindUnknown  Kind = iota
	KindKey           // a key: Key, Value, Version, Token, Lifetime
	KindFence         // the fence of a key that is gone: Key, Token
	KindReply         // a remembered reply: Client, Sequence, Verb, Outcome, Version
	KindIdentity      // the identity of the data: Identity
	KindBound         // the bound of the versions: Version
)

var kindNames = []string{"unknown", "key", "fence", "reply", "identity", "bound"}

// String returns the kind in one word.
func (k Kind) String() string { return nameOf("Kind", kindNames, k) }

// MarshalText implements [encoding.TextMarshaler]; it returns the text of String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Item is what a record says. Fields that its kind does not name are zero.
type Item struct {
	Kind     Kind
	Key      string        // any bytes
	Value    string        // any bytes
	Version  hlc.Timestamp // KindBound: no version above it was issued; its Node is empty
	Token    hlc.Token     // zero: the key is not protected
	Lifetime time.Duration // from each SET and each start of the store; zero: the key does not expire
	Client   string        // the client id
	Sequence uint64        // orders the replies of a client
	Verb     Verb          // of the request
	Outcome  Outcome       // of the reply
	Identity string        // see Options.Identity
}

// Decode returns what the record says. The error matches ErrCorrupt or ErrNewerFormat.
func (r Record) Decode() (Item, error) { return Item{}, nil }

// Record returns the record that says the same as the item: Decode of it returns the item.
func (i Item) Record() Record { return Record{} }
