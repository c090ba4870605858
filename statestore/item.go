package statestore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
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
	KindReply         // a remembered reply: Client, Sequence, Verb, Outcome, Version
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
	Sequence uint64        // orders the replies of a client, or the changes
	Verb     Verb          // of the request
	Outcome  Outcome       // of the reply
	Identity string        // see Options.Identity
	HoldOff  bool          // the store has not granted a lease yet, see Options.HoldOff

	slot    uint32      // of a reply, distinguishes the records of a client; of a change, all of them
	request fingerprint // of a reply
}

// The format of a record. An ID is a letter and a name:
//
//	k key              a key, or its fence if it is gone
//	K SHA-256          the same for a long key
//	r client slot      a reply; slot is a number of 4 bytes
//	R SHA-256 slot     the same for a long client id
//	h slot             a change of a lease; slot is a number of 4 bytes
//	i                  the identity
//	b                  the bound
//
// A value is the format, the kind, the fields, and the CRC-32C of the ID and all of these.
// Format and checksum stay where they are in each format to come, so that a store can tell a
// newer record from a damaged one. Numbers are big-endian and have a fixed length, so there is
// one encoding of each item.
const (
	format = 2

	idKey, idLongKey     = 'k', 'K'
	idReply, idLongReply = 'r', 'R'
	idIdentity, idBound  = 'i', 'b'
	idChange             = 'h'

	// maxName is the longest name that an ID has as it is, beside a letter and a slot.
	maxName  = MaxID - 1 - slotSize
	slotSize = 4
	maxSlot  = 1 << 31
	// headSize and sumSize are the bytes of each value before and after the fields.
	headSize, sumSize = 2, crc32.Size
	// willedBit is the bit of a lifetime that is Item.Willed.
	willedBit = 63
)

// Record returns the record that says the same as the item, so that its Decode returns the
// item. It panics for an item without a kind. It does not check the fields.
func (i Item) Record() Record {
	// One allocation has ID and value, and the checksum covers all bytes before it. 128 bytes are
	// enough for the fixed fields and a hash, but of a change.
	texts := len(i.Key) + len(i.Value) + len(i.Client) + len(i.User) + len(i.Identity)
	texts += len(i.Version.Node) + len(i.Token.Node)
	buffer := make([]byte, 0, 128+texts)
	buffer = i.appendID(buffer)
	id := len(buffer)
	buffer = append(buffer, format, byte(i.Kind))
	switch i.Kind {
	case KindKey:
		buffer = appendStamp(buffer, i.Version)
		buffer = appendOptionalStamp(buffer, hlc.Timestamp(i.Token))
		buffer = binary.BigEndian.AppendUint64(buffer, uint64(i.Lifetime)|uint64(flag(i.Willed))<<willedBit)
		buffer = appendLongName(buffer, i.Key)
		buffer = append(buffer, flag(i.Since != 0))
		if i.Since != 0 {
			buffer = binary.BigEndian.AppendUint64(buffer, uint64(i.Since))
			buffer = appendText(appendText(buffer, i.Client), i.User)
		}
		buffer = append(buffer, i.Value...)
	case KindFence:
		buffer = appendStamp(buffer, hlc.Timestamp(i.Token))
		buffer = appendLongName(buffer, i.Key)
	case KindReply:
		buffer = binary.BigEndian.AppendUint64(buffer, i.Sequence)
		buffer = append(buffer, byte(i.Verb), byte(i.Outcome), i.request.correlation.kind)
		buffer = append(buffer, i.request.correlation.data[:]...)
		buffer = binary.BigEndian.AppendUint32(buffer, i.request.sum)
		buffer = appendOptionalStamp(buffer, i.Version)
		buffer = appendLongName(buffer, i.Client)
	case KindChange:
		buffer = binary.BigEndian.AppendUint64(buffer, i.Sequence)
		for _, text := range i.texts() {
			buffer = appendText(buffer, *text)
		}
		for _, moment := range i.Change.moments() {
			buffer = binary.BigEndian.AppendUint64(buffer, uint64(millisOf(*moment)))
		}
		for _, number := range []uint64{uint64(i.Change.GapMillis), uint64(i.Change.HeldMillis), i.Change.Repeated} {
			buffer = binary.BigEndian.AppendUint64(buffer, number)
		}
	case KindIdentity:
		buffer = append(buffer, flag(i.HoldOff))
		buffer = append(buffer, i.Identity...)
	case KindBound:
		buffer = binary.BigEndian.AppendUint64(buffer, uint64(i.Version.Wall))
		buffer = binary.BigEndian.AppendUint64(buffer, i.Version.Counter)
	}
	buffer = binary.BigEndian.AppendUint32(buffer, crc32.Checksum(buffer, castagnoli))
	return Record{ID: buffer[:id:id], Value: buffer[id:]}
}

// gone returns the record which says that the item is gone. Of the item, only the fields of
// the ID matter.
func (i Item) gone() Record { return Record{ID: i.appendID(nil)} }

func (i Item) appendID(dst []byte) []byte {
	switch i.Kind {
	case KindKey, KindFence:
		return appendName(dst, idKey, idLongKey, i.Key)
	case KindReply:
		return binary.BigEndian.AppendUint32(appendName(dst, idReply, idLongReply, i.Client), i.slot)
	case KindChange:
		return binary.BigEndian.AppendUint32(append(dst, idChange), i.slot)
	case KindIdentity:
		return append(dst, idIdentity)
	case KindBound:
		return append(dst, idBound)
	}
	panic("statestore: an item of kind " + i.Kind.String() + " has no record")
}

func appendName(dst []byte, short, long byte, name string) []byte {
	if len(name) <= maxName {
		return append(append(dst, short), name...)
	}
	sum := sha256.Sum256([]byte(name))
	return append(append(dst, long), sum[:]...)
}

// appendLongName appends a name that the ID has only the SHA-256 of.
func appendLongName(dst []byte, name string) []byte {
	if len(name) <= maxName {
		return dst
	}
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(name))), name...)
}

// texts are the texts of a change of a lease.
func (i *Item) texts() []*string {
	c := &i.Change
	return []*string{&c.Name, (*string)(&c.Cause), &c.From, &c.To, &c.By, &c.ByUser, &c.Forced, &i.Client, &i.User}
}

// moments are the times of a change of a lease.
func (h *HolderChange) moments() []*time.Time {
	return []*time.Time{&h.Ended, &h.Began, &h.Disconnected}
}

func appendText(dst []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(text))), text...)
}

func appendStamp(dst []byte, stamp hlc.Timestamp) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(stamp.Wall))
	dst = binary.BigEndian.AppendUint64(dst, stamp.Counter)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(stamp.Node)))
	return append(dst, stamp.Node...)
}

func appendOptionalStamp(dst []byte, stamp hlc.Timestamp) []byte {
	if stamp.IsZero() {
		return append(dst, 0)
	}
	return appendStamp(append(dst, 1), stamp)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// Decode returns what the record says. It accepts exactly the bytes that a store writes. The
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
	if len(r.Value) < headSize+sumSize {
		return Item{}, damaged("the value has %d bytes", len(r.Value))
	}
	fields, sum := r.Value[:len(r.Value)-sumSize], binary.BigEndian.Uint32(r.Value[len(r.Value)-sumSize:])
	if crc32.Update(crc32.Checksum(r.ID, castagnoli), castagnoli, fields) != sum {
		return Item{}, damaged("wrong checksum")
	}
	if fields[0] > format {
		return Item{}, fmt.Errorf("%w: it has format %d, this version reads up to %d; use the version that wrote it, or a newer one",
			ErrNewerFormat, fields[0], format)
	}
	if fields[0] != format {
		return Item{}, damaged("it has format %d, which no release wrote and this version does not read", fields[0])
	}
	item := Item{Kind: Kind(fields[1])}
	rest := decoder{bytes: fields[headSize:]}
	id := decoder{bytes: r.ID}
	switch letter := id.byte(); {
	case item.Kind == KindKey && (letter == idKey || letter == idLongKey):
		item.Version = rest.stamp()
		item.Token = hlc.Token(rest.optionalStamp())
		lifetime := rest.uint64()
		item.Lifetime, item.Willed = time.Duration(lifetime&math.MaxInt64), lifetime>>willedBit != 0
		item.Key = name(&id, &rest, letter == idLongKey)
		if rest.flag() {
			if item.Since = int64(rest.uint63()); item.Since == 0 {
				rest.fail("a lease was acquired at no time")
			}
			item.Client, item.User = rest.text(), rest.text()
		}
		item.Value = string(rest.take(len(rest.bytes)))
	case item.Kind == KindFence && (letter == idKey || letter == idLongKey):
		item.Token = hlc.Token(rest.stamp())
		item.Key = name(&id, &rest, letter == idLongKey)
	case item.Kind == KindReply && (letter == idReply || letter == idLongReply):
		item.Sequence = rest.uint64()
		item.Verb, item.Outcome = Verb(rest.byte()), Outcome(rest.byte())
		item.request.correlation.kind = rest.byte()
		copy(item.request.correlation.data[:], rest.take(len(item.request.correlation.data)))
		item.request.sum = rest.uint32()
		item.Version = rest.optionalStamp()
		slot := decoder{bytes: id.takeEnd(slotSize)}
		item.slot = slot.uint32()
		item.Client = name(&id, &rest, letter == idLongReply)
		if !item.isReply() {
			rest.fail("the reply is not one that a store remembers")
		}
	case item.Kind == KindChange && letter == idChange:
		item.slot, item.Sequence = id.uint32(), rest.uint64()
		for _, text := range item.texts() {
			*text = rest.text()
		}
		for _, moment := range item.Change.moments() {
			*moment = rest.moment()
		}
		item.Change.GapMillis, item.Change.HeldMillis = int64(rest.uint63()), int64(rest.uint63())
		item.Change.Repeated = rest.uint64()
		if item.slot >= maxChanges || !slices.Contains(Causes, item.Change.Cause) {
			rest.fail("the change is not one that a store keeps")
		}
	case item.Kind == KindIdentity && letter == idIdentity:
		item.HoldOff = rest.flag()
		item.Identity = string(rest.take(len(rest.bytes)))
	case item.Kind == KindBound && letter == idBound:
		item.Version = hlc.Timestamp{Wall: int64(rest.uint63()), Counter: rest.uint64()}
	default:
		return Item{}, damaged("the value of kind %v does not belong to the ID", item.Kind)
	}
	if (item.Kind == KindKey || item.Kind == KindFence) && item.Key == "" {
		rest.fail("the key is empty")
	}
	if len(rest.bytes) > 0 || len(id.bytes) > 0 {
		rest.fail("there are bytes after the end")
	}
	if id.fault != "" || rest.fault != "" {
		return Item{}, damaged("%s%s", id.fault, rest.fault)
	}
	return item, nil
}

// isReply reports whether a store remembers such a reply: one to a request that changed
// something.
func (i *Item) isReply() bool {
	c := &i.request.correlation
	for _, b := range c.data[min(c.kind, uint8(len(c.data))):] {
		if b != 0 {
			return false
		}
	}
	known := c.kind >= 1 && int(c.kind) <= len(c.data) || c.kind == hashed
	return known && i.slot < maxSlot && (i.Verb == VerbSet && i.Outcome == OK ||
		(i.Verb == VerbDel || i.Verb == VerbVDel) && (i.Outcome == Deleted || i.Outcome == NothingThere))
}

func damaged(cause string, args ...any) error {
	return fmt.Errorf("%w: "+cause+"; check the data, or restore a backup", append([]any{ErrDamaged}, args...)...)
}

// decoder takes fields from the beginning of bytes. After the first fault its results are
// zero.
type decoder struct {
	bytes []byte
	fault string
}

func (d *decoder) fail(fault string) {
	if d.fault == "" {
		d.fault = fault
	}
	d.bytes = nil
}

func (d *decoder) take(n int) []byte {
	if n > len(d.bytes) {
		d.fail("there are bytes missing at the end")
		return nil
	}
	taken := d.bytes[:n]
	d.bytes = d.bytes[n:]
	return taken
}

func (d *decoder) takeEnd(n int) []byte {
	if n > len(d.bytes) {
		d.fail("the ID is too short")
		return nil
	}
	taken := d.bytes[len(d.bytes)-n:]
	d.bytes = d.bytes[:len(d.bytes)-n]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) flag() bool {
	b := d.byte()
	if b > 1 {
		d.fail("a flag is neither 0 nor 1")
	}
	return b == 1
}

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) text() string {
	length := d.uint32()
	return string(d.take(int(min(uint64(length), math.MaxInt32))))
}

// latestMoment is the last millisecond of the year 9999, after which JSON has no times.
const latestMoment = 253402300799999

func (d *decoder) moment() time.Time {
	millis := d.uint63()
	if millis > latestMoment {
		d.fail("a time is too late")
		return time.Time{}
	}
	return wallOf(int64(millis))
}

// uint63 takes a number that is not negative as an int64.
func (d *decoder) uint63() uint64 {
	n := d.uint64()
	if n > math.MaxInt64 {
		d.fail("a time is negative")
		return 0
	}
	return n
}

func (d *decoder) stamp() hlc.Timestamp {
	stamp := hlc.Timestamp{Wall: int64(d.uint63()), Counter: d.uint64()}
	if b := d.take(2); b != nil {
		stamp.Node = string(d.take(int(binary.BigEndian.Uint16(b))))
	}
	if d.fault != "" {
		return hlc.Timestamp{}
	}
	if _, err := stamp.MarshalText(); err != nil || stamp.IsZero() {
		d.fail("a version or a token is malformed")
	}
	return stamp
}

func (d *decoder) optionalStamp() hlc.Timestamp {
	if !d.flag() {
		return hlc.Timestamp{}
	}
	return d.stamp()
}

// name takes a name from the ID, or a long one from the value, of which the ID has the
// SHA-256.
func name(id, value *decoder, long bool) string {
	if !long {
		if len(id.bytes) > maxName {
			id.fail("the ID is too long")
		}
		return string(id.take(len(id.bytes)))
	}
	n := value.uint32()
	if n <= maxName || uint64(n) > uint64(len(value.bytes)) {
		value.fail("the length of a name is wrong")
		return ""
	}
	text := value.take(int(n))
	if sum := sha256.Sum256(text); string(id.take(len(id.bytes))) != string(sum[:]) {
		id.fail("the ID is not the hash of the name")
	}
	return string(text)
}
