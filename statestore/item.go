package statestore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

var (
	// ErrDamaged matches the errors of Decode and Restore for a record whose bytes are not
	// those that a store wrote, and the errors of Restored for records that do not belong
	// together.
	ErrDamaged = errors.New("the data is damaged")
	// ErrNewerFormat matches the errors of Decode and Restore for a record that a newer
	// version of this package wrote.
	ErrNewerFormat = errors.New("a newer version wrote the data")
)

// Kind is what a record is about.
type Kind uint8

// The kinds of records. Their numbers are a part of the format.
const (
	KindUnknown  Kind = iota
	KindKey           // a key: Key, Value, Version, Token, Lifetime, Willed; of a lease Client, User, Since
	KindFence         // the fence of a key that is gone: Key, Token
	KindReply         // a remembered reply: Client, Sequence, Session, Verb, Outcome, Version
	KindIdentity      // the identity of the data: Identity, HoldOff
	KindBound         // the bound of the versions: Version
	KindChange        // a change of a lease: Change, Client and User that it is counted for, Sequence
)

var kindNames = []string{"unknown", "key", "fence", "reply", "identity", "bound", "change"}

// String returns the kind in one word.
func (k Kind) String() string { return nameOf("Kind", kindNames, k) }

// MarshalText implements [encoding.TextMarshaler]; it returns the text of String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Item is what a record says. Fields that the comment of its kind does not name are zero.
type Item struct {
	Kind     Kind
	Key      string        // any bytes
	Value    string        // any bytes
	Version  hlc.Timestamp // KindBound: no version above it was issued; its Node is empty
	Token    hlc.Token     // zero: the key is not protected
	Lifetime time.Duration // from each SET and each start of the store; zero: the key does not expire
	Willed   bool          // the key ends with the connection that set it, see Command.Willed
	Client   string        // the client id; of the holder, if the key is a lease
	User     string        // of the client; empty: it has not authenticated
	Since    int64         // when the holder acquired the lease, in milliseconds since the Unix epoch; 0: it is none
	Change   HolderChange  // while To is empty, GapMillis is only what there was before Ended
	Sequence uint64        // orders the replies, or the changes
	Session  uint64        // of the client: a later one has a higher number
	Verb     Verb          // of the request
	Outcome  Outcome       // of the reply
	Identity string        // see Options.Identity
	HoldOff  bool          // the store has not granted a lease yet, see Options.HoldOff

	slot    uint64      // distinguishes the records of replies, or of changes
	request fingerprint // of a reply
}

// The format of a record. An ID is a letter and a name:
//
//	k key       a key, or its fence if it is gone
//	K SHA-256   the same for a long key
//	r slot      a reply; slot is a number of 8 bytes
//	h slot      a change of a lease
//	i           the identity
//	b           the bound
//
// A value is the format, the kind, the fields, and the CRC-32C of the ID and all of these.
// Format and checksum stay where they are in each format to come, so that a store can tell a
// newer record from a damaged one. Numbers are of variable length, as short as they can be, and so are the lengths
// before texts.
const (
	format = 3

	idKey, idLongKey    = 'k', 'K'
	idReply, idChange   = 'r', 'h'
	idIdentity, idBound = 'i', 'b'

	// maxName is the longest key that an ID has as it is, beside a letter.
	maxName = MaxID - 1
	// headSize and sumSize are the bytes of each value before and after the fields.
	headSize, sumSize = 2, crc32.Size
	// latestMoment is the last millisecond of the year 9999, after which JSON has no times.
	latestMoment = 253402300799999
)

// Record returns the record that says the same as the item, so that its Decode returns the
// item. It panics for an item without a kind. It does not check the fields.
func (i Item) Record() Record {
	// One allocation has ID and value, and the checksum covers all bytes before it. 128 bytes are
	// enough for the numbers and a hash.
	buffer := make([]byte, 0, 128+len(i.Key)+len(i.Value)+len(i.Client)+len(i.User)+len(i.Identity)+len(i.Token.Node))
	buffer = i.appendID(buffer)
	id := len(buffer)
	c := codec{id: buffer, bytes: append(buffer, format, byte(i.Kind))}
	i.fields(&c)
	value := binary.BigEndian.AppendUint32(c.bytes, crc32.Checksum(c.bytes, castagnoli))
	return Record{ID: value[:id:id], Value: value[id:]}
}

// gone returns the record which says that the item is gone. Of the item, only the fields of
// the ID matter.
func (i Item) gone() Record { return Record{ID: i.appendID(nil)} }

func (i *Item) appendID(dst []byte) []byte {
	switch i.Kind {
	case KindKey, KindFence:
		if len(i.Key) <= maxName {
			return append(append(dst, idKey), i.Key...)
		}
		sum := sha256.Sum256([]byte(i.Key))
		return append(append(dst, idLongKey), sum[:]...)
	case KindReply:
		return binary.BigEndian.AppendUint64(append(dst, idReply), i.slot)
	case KindChange:
		return binary.BigEndian.AppendUint64(append(dst, idChange), i.slot)
	case KindIdentity:
		return append(dst, idIdentity)
	case KindBound:
		return append(dst, idBound)
	}
	panic("statestore: an item of kind " + i.Kind.String() + " has no record")
}

// fields appends the fields of an item to a value, or takes them from there.
func (i *Item) fields(c *codec) {
	switch i.Kind {
	case KindKey:
		c.version(&i.Version)
		c.token(&i.Token)
		number(c, &i.Lifetime)
		c.flag(&i.Willed)
		c.key(&i.Key)
		c.text(&i.Value)
		if number(c, &i.Since); i.Since != 0 {
			c.text(&i.Client)
			c.text(&i.User)
		}
		c.check(i.Key != "" && !i.Version.IsZero())
	case KindFence:
		c.token(&i.Token)
		c.key(&i.Key)
		c.check(i.Key != "" && !i.Token.IsZero())
	case KindReply:
		c.slot(&i.slot)
		number(c, &i.Sequence)
		number(c, &i.Session)
		number(c, &i.Verb)
		number(c, &i.Outcome)
		request := string(i.request[:])
		c.text(&request)
		copy(i.request[:], request)
		c.version(&i.Version)
		c.text(&i.Client)
		c.check(i.isReply())
	case KindChange:
		h := &i.Change
		c.slot(&i.slot)
		number(c, &i.Sequence)
		for _, text := range []*string{
			&h.Name, (*string)(&h.Cause), &h.From, &h.To, &h.By, &h.ByUser, &h.Forced, &i.Client, &i.User,
		} {
			c.text(text)
		}
		for _, moment := range []*time.Time{&h.Ended, &h.Began, &h.Disconnected} {
			c.moment(moment)
		}
		number(c, &h.GapMillis)
		number(c, &h.HeldMillis)
		number(c, &h.Repeated)
		c.check(i.slot < maxChanges && slices.Contains(Causes, h.Cause))
	case KindIdentity:
		c.flag(&i.HoldOff)
		c.text(&i.Identity)
	case KindBound:
		number(c, &i.Version.Wall)
		number(c, &i.Version.Counter)
	default:
		c.check(false)
	}
}

// Decode returns what the record says. It refuses all bytes but those of the item's Record. The
// error matches ErrDamaged or ErrNewerFormat, says what is wrong and quotes the beginning of
// the ID. Decode does not keep the bytes, and allocates in proportion to them.
func (r Record) Decode() (Item, error) {
	item, err := r.decode()
	if err != nil {
		return Item{}, fmt.Errorf("statestore: record %.64q: %w", r.ID, err)
	}
	return item, nil
}

func (r Record) decode() (Item, error) {
	if len(r.ID) == 0 || len(r.Value) < headSize+sumSize {
		return Item{}, damaged("the ID has %d bytes, and the value %d", len(r.ID), len(r.Value))
	}
	fields, sum := r.Value[:len(r.Value)-sumSize], binary.BigEndian.Uint32(r.Value[len(r.Value)-sumSize:])
	if crc32.Update(crc32.Checksum(r.ID, castagnoli), castagnoli, fields) != sum {
		return Item{}, damaged("wrong checksum")
	}
	if fields[0] > format {
		return Item{}, fmt.Errorf("%w: it has format %d, this version reads up to %d; use the version that wrote it, or a "+
			"newer one",
			ErrNewerFormat, fields[0], format)
	}
	if fields[0] != format {
		return Item{}, damaged("it has format %d, which no release wrote and this version does not read", fields[0])
	}
	item := Item{Kind: Kind(fields[1])}
	c := codec{id: r.ID, bytes: fields[headSize:], decodes: true}
	if item.fields(&c); c.failed {
		return Item{}, damaged("its fields are not those of its kind, %v", item.Kind)
	}
	// An item has one record: this also finds bytes after the end, the ID of another record, and longer numbers.
	if again := item.Record(); !bytes.Equal(again.ID, r.ID) || !bytes.Equal(again.Value, r.Value) {
		return Item{}, damaged("a store writes other bytes for what it says")
	}
	return item, nil
}

// isReply reports whether a store remembers such a reply: one to a request that changed
// something.
func (i *Item) isReply() bool {
	return i.request != fingerprint{} && (i.Verb == VerbSet && i.Outcome == OK ||
		(i.Verb == VerbDel || i.Verb == VerbVDel) && (i.Outcome == Deleted || i.Outcome == NothingThere))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func damaged(cause string, args ...any) error {
	return fmt.Errorf("%w: "+cause+"; check the data, or restore a backup", append([]any{ErrDamaged}, args...)...)
}

// codec appends the fields of an item to bytes, or takes them from there. After the first fault it takes nothing.
type codec struct {
	id      []byte // of the record
	bytes   []byte
	decodes bool
	failed  bool
}

func (c *codec) check(isRight bool) {
	if c.decodes && !isRight {
		c.failed, c.bytes = true, nil
	}
}

// number appends or takes a number, which is not negative.
func number[T ~int64 | ~uint64 | ~uint32 | ~uint8](c *codec, n *T) {
	if !c.decodes {
		c.bytes = binary.AppendUvarint(c.bytes, uint64(*n))
		return
	}
	taken, size := binary.Uvarint(c.bytes)
	*n = T(taken)
	c.check(size > 0 && *n >= 0)
	c.bytes = c.bytes[min(max(size, 0), len(c.bytes)):]
}

func (c *codec) flag(set *bool) {
	var bit uint8
	if *set {
		bit = 1
	}
	number(c, &bit)
	*set = bit != 0
}

func (c *codec) text(text *string) {
	length := uint64(len(*text))
	number(c, &length)
	switch c.check(length <= uint64(len(c.bytes))); {
	case !c.decodes:
		c.bytes = append(c.bytes, *text...)
	case !c.failed:
		*text, c.bytes = string(c.bytes[:length]), c.bytes[length:]
	}
}

// key takes a key from the ID, or appends or takes a long one, of which the ID has the hash.
func (c *codec) key(key *string) {
	switch {
	case c.id[0] == idLongKey:
		c.text(key)
	case c.decodes:
		*key = string(c.id[1:])
	}
}

func (c *codec) slot(slot *uint64) {
	if c.check(len(c.id) == 1+8); !c.failed {
		*slot = binary.BigEndian.Uint64(c.id[1:])
	}
}

// version appends or takes a version of the store; zero: there is none.
func (c *codec) version(version *hlc.Timestamp) {
	number(c, &version.Wall)
	number(c, &version.Counter)
	if c.decodes {
		*version = stamp{version.Wall, version.Counter}.timestamp()
	}
}

// token appends or takes a token; zero: there is none.
func (c *codec) token(token *hlc.Token) {
	number(c, &token.Wall)
	number(c, &token.Counter)
	c.text(&token.Node)
	if c.decodes {
		_, err := token.MarshalText()
		c.check(err == nil)
	}
}

func (c *codec) moment(moment *time.Time) {
	millis := millisOf(*moment)
	number(c, &millis)
	if c.check(millis <= latestMoment); c.decodes {
		*moment = wallOf(millis)
	}
}
