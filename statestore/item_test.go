package statestore

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// goldenItems are items of each kind with their bytes. The bytes must never change: stores of
// earlier versions wrote them.
var goldenItems = []struct {
	name      string
	item      Item
	id, value string // in hex
}{
	{
		"a key",
		Item{Kind: KindKey, Key: "k", Value: "v", Version: hlc.Timestamp{Wall: noon, Counter: 1, Node: storeNode}},
		"6b6b", "0301a88baebeaf3101000000000001760069418569",
	},
	{
		"a key with everything",
		Item{
			Kind: KindKey, Key: "\x00\xff", Value: "\x00\r\n", Version: hlc.Timestamp{Wall: 1, Counter: math.MaxUint64, Node: storeNode},
			Token: hlc.Token{Wall: math.MaxInt64, Node: "n"}, Lifetime: 1500 * time.Millisecond,
		},
		"6b00ff", "030101ffffffffffffffffff01ffffffffffffffff7f00016e80dea0cb050003000d0a00b4cc8ef6",
	},
	{"a fence", Item{Kind: KindFence, Key: "k", Token: hlc.Token{Wall: 2, Counter: 3, Node: "n"}}, "6b6b", "03020203016e7c58d01c"},
	{
		"a reply",
		Item{
			Kind: KindReply, Client: "c", Sequence: 7, Verb: VerbSet, Outcome: OK, Version: hlc.Timestamp{Wall: 4, Counter: 5, Node: storeNode},
			slot: 258, request: fingerprint{1, 2, 0xff},
		},
		"720000000000000102", "030307000101100102ff0000000000000000000000000004050163412a3c89",
	},
	{
		"a reply without a version",
		Item{
			Kind: KindReply, Client: "", Sequence: 1, Verb: VerbDel, Outcome: NothingThere,
			request: fingerprint{1},
		},
		"720000000000000000", "0303010003061001000000000000000000000000000000000000a6307d1c",
	},
	{"the identity", Item{Kind: KindIdentity, Identity: "the data", HoldOff: true}, "69", "030401087468652064617461e3a66ef9"},
	{"no identity", Item{Kind: KindIdentity}, "69", "030400006801e0d2"},
	{
		"a lease",
		Item{
			Kind: KindKey, Key: "k", Value: "v", Version: hlc.Timestamp{Wall: noon, Counter: 1, Node: storeNode}, Lifetime: time.Second,
			Client: "a", User: "ana", Since: noon,
		},
		"6b6b", "0301a88baebeaf31010000008094ebdc03000176a88baebeaf31016103616e61f02fca52",
	},
	{
		"a change of a lease",
		Item{
			Kind: KindChange, Client: "b", User: "ana", Sequence: 7, slot: 258, Change: HolderChange{
				Name: "k", Cause: CauseForced, From: "a", To: "b", By: "b", ByUser: "ana", Forced: "it hangs", Ended: wallOf(noon),
				Began: wallOf(noon + 5), Disconnected: wallOf(noon - 5), GapMillis: 5, HeldMillis: 6, Repeated: 1,
			},
		},
		"680000000000000102", "030607016b06666f7263656401610162016203616e610869742068616e6773016203616e61a88baebeaf31ad8baebeaf31a38baebeaf31050601de59150c",
	},
	{"the bound", Item{Kind: KindBound, Version: hlc.Timestamp{Wall: noon, Counter: 6}}, "62", "0305a88baebeaf3106c1545569"},
	{
		"a key that ends with its connection",
		Item{Kind: KindKey, Key: "k", Value: "v", Version: hlc.Timestamp{Wall: noon, Counter: 1, Node: storeNode}, Lifetime: time.Second, Willed: true},
		"6b6b", "0301a88baebeaf31010000008094ebdc030101760085e0bca9",
	},
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	bytes, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestTheFormatOfRecordsDoesNotChange(t *testing.T) {
	for _, golden := range goldenItems {
		t.Run(golden.name, func(t *testing.T) {
			record := golden.item.Record()
			if got := hex.EncodeToString(record.ID); got != golden.id {
				t.Errorf("the ID is %s; want %s", got, golden.id)
			}
			if got := hex.EncodeToString(record.Value); got != golden.value {
				t.Errorf("the value is %s; want %s", got, golden.value)
			}
			item, err := Record{ID: unhex(t, golden.id), Value: unhex(t, golden.value)}.Decode()
			if err != nil || item != golden.item {
				t.Errorf("decoded: %+v, %v; want %+v", item, err, golden.item)
			}
			if gone := golden.item.gone(); string(gone.ID) != string(record.ID) || gone.Value != nil {
				t.Errorf("the record that it is gone is %q", gone)
			}
		})
	}
}

// Keys of any length have an ID of bounded length, and no two have the same.
func TestIDsAreShortAndDistinct(t *testing.T) {
	seen := make(map[string]bool)
	long := strings.Repeat("x", maxName)
	for _, name := range []string{"k", "K", "\x00", long, long + "x", long + "y", "y" + long, strings.Repeat("x", 1<<20)} {
		item := Item{Kind: KindKey, Key: name, Value: name, Version: hlc.Timestamp{Wall: 1, Node: storeNode}}
		record := item.Record()
		if len(record.ID) > MaxID || cap(record.ID) > len(record.ID) || seen[string(record.ID)] {
			t.Errorf("the ID of %.20q has %d bytes, space for %d, and may be shared", name, len(record.ID), cap(record.ID))
		}
		seen[string(record.ID)] = true
		if got, err := record.Decode(); err != nil || got != item {
			t.Errorf("%.20q: decoded another item, %v", name, err)
		}
	}
	fence, key := Item{Kind: KindFence, Key: "k", Token: hlc.Token{Node: "n"}}, Item{Kind: KindKey, Key: "k"}
	if string(fence.gone().ID) != string(key.gone().ID) {
		t.Error("a key and its fence must have the same ID: one takes the place of the other")
	}
}

// sign replaces the checksum of a value.
func sign(id, value []byte) Record {
	fields := value[:len(value)-sumSize]
	sum := crc32.Update(crc32.Checksum(id, castagnoli), castagnoli, fields)
	return Record{ID: id, Value: binary.BigEndian.AppendUint32(fields[:len(fields):len(fields)], sum)}
}

func TestDecodeRefusesWhatNoStoreWrites(t *testing.T) {
	key := func(change func(id, value []byte) ([]byte, []byte)) Record {
		record := Item{Kind: KindKey, Key: "key", Value: "value", Version: hlc.Timestamp{Wall: 1, Node: storeNode}, Token: hlc.Token{Wall: 2, Node: "m"}}.Record()
		return sign(change(record.ID, record.Value))
	}
	at := func(i int, b byte) func(id, value []byte) ([]byte, []byte) {
		return func(id, value []byte) ([]byte, []byte) { value[i] = b; return id, value }
	}
	reply := func(change func(*Item)) Record {
		item := goldenItems[3].item
		change(&item)
		return item.Record()
	}
	change := func(change func(*Item)) Record {
		item := goldenItems[8].item
		change(&item)
		return item.Record()
	}
	bound := func(numbers ...byte) Record {
		return sign([]byte("b"), append(append([]byte{format, byte(KindBound)}, numbers...), 0, 0, 0, 0))
	}
	long := Item{Kind: KindKey, Key: strings.Repeat("k", 2000), Version: hlc.Timestamp{Wall: 1, Node: storeNode}}.Record()
	tests := []struct {
		name   string
		record Record
		cause  string
		is     error
	}{
		{"no value", Record{ID: []byte("kk")}, "and the value 0", ErrDamaged},
		{"a short value", Record{ID: []byte("kk"), Value: []byte("12345")}, "and the value 5", ErrDamaged},
		{"no ID", sign(nil, append([]byte{format, byte(KindBound)}, make([]byte, 6)...)), "the ID has 0 bytes", ErrDamaged},
		{"the ID of another key", Record{ID: []byte("kother"), Value: key(at(0, format)).Value}, "wrong checksum", ErrDamaged},
		{"a newer format", key(at(0, format+1)), "has format 4, this version reads up to 3", ErrNewerFormat},
		{"an earlier format", key(at(0, format-1)), "has format 2, which no release wrote", ErrDamaged},
		{"an unknown kind", key(at(1, 9)), "Kind(9)", ErrDamaged},
		{"another kind", key(at(1, byte(KindBound))), "other bytes", ErrDamaged},
		{"another kind with a slot", key(at(1, byte(KindReply))), "not those of its kind", ErrDamaged},
		{"a negative wall clock", bound(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0), "not those of its kind", ErrDamaged},
		{"a number that is longer than it need be", bound(0x80, 0, 0), "other bytes", ErrDamaged},
		{"a number above all", bound(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0), "not those of its kind", ErrDamaged},
		{"a node that is longer than the value", key(at(6, 0xff)), "not those of its kind", ErrDamaged},
		{"a node with a colon", key(at(7, ':')), "not those of its kind", ErrDamaged},
		{"a flag that is none", key(at(9, 2)), "other bytes", ErrDamaged},
		{"an empty key", key(func(_, value []byte) ([]byte, []byte) { return []byte("k"), value }), "not those of its kind", ErrDamaged},
		{"a long key as it is", key(func(_, value []byte) ([]byte, []byte) { return append([]byte("k"), make([]byte, maxName+1)...), value }), "other bytes", ErrDamaged},
		{"a short name with a hash", key(func(_, value []byte) ([]byte, []byte) { return append([]byte("K"), make([]byte, 32)...), value }), "not those of its kind", ErrDamaged},
		{"the hash of another name", sign(append([]byte("K"), make([]byte, 32)...), long.Value), "other bytes", ErrDamaged},
		{"bytes after the end", bound(1, 1, 1), "other bytes", ErrDamaged},
		{"a bound that is cut short", bound(1), "not those of its kind", ErrDamaged},
		{"bytes after the ID", sign([]byte("bb"), bound(1, 1).Value), "other bytes", ErrDamaged},
		{"a reply without a slot", sign([]byte("r12"), goldenItems[3].item.Record().Value), "not those of its kind", ErrDamaged},
		{"the reply to a GET", reply(func(i *Item) { i.Verb = VerbGet }), "not those of its kind", ErrDamaged},
		{"a refusal", reply(func(i *Item) { i.Outcome = Refused }), "not those of its kind", ErrDamaged},
		{"no correlation data", reply(func(i *Item) { i.request = fingerprint{} }), "not those of its kind", ErrDamaged},
		{"a change in a slot that is too high", change(func(i *Item) { i.slot = maxChanges }), "not those of its kind", ErrDamaged},
		{"a change without a cause", change(func(i *Item) { i.Change.Cause = "" }), "not those of its kind", ErrDamaged},
		{"a time after the year 9999", change(func(i *Item) { i.Change.Began = wallOf(latestMoment + 1) }), "not those of its kind", ErrDamaged},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			item, err := test.record.Decode()
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.cause) {
				t.Errorf("Decode = %+v, %v; want an error with %q", item, err, test.cause)
			}
			if item != (Item{}) {
				t.Errorf("the item is %+v beside an error", item)
			}
		})
	}
}

// Invariant 44 for records: any bytes are refused, or decode to an item whose record is the
// same bytes; and nothing is allocated beyond a constant times their number.
func FuzzDecodeRecord(f *testing.F) {
	for _, golden := range goldenItems {
		f.Add(unhex(f, golden.id), unhex(f, golden.value), true)
	}
	long := Item{Kind: KindKey, Key: strings.Repeat("k", 2000), Version: hlc.Timestamp{Wall: 1, Node: storeNode}}.Record()
	f.Add(long.ID, long.Value, false)
	f.Fuzz(func(t *testing.T, id, value []byte, resign bool) {
		record := Record{ID: id, Value: value}
		if resign && len(value) >= sumSize { // or nearly every input would end at the checksum
			record = sign(id, value)
		}
		item, err := record.Decode()
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat) || item != (Item{}) {
				t.Errorf("%+v, %v", item, err)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if size := len(item.Key) + len(item.Value) + len(item.Client) + len(item.Identity) + len(item.Token.Node); size > len(id)+len(value) {
			t.Errorf("an item of %d bytes from %d", size, len(id)+len(value))
		}
		again := item.Record()
		if string(again.ID) != string(record.ID) || string(again.Value) != string(record.Value) {
			t.Errorf("%+v has the record %x %x; it was decoded from %x %x", item, again.ID, again.Value, record.ID, record.Value)
		}
	})
}
