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
		Item{Kind: KindKey, Key: "k", Value: "v", Version: hlc.Timestamp{Wall: noon, Counter: 1, Node: "StateStore"}},
		"6b6b", "02010000018af7cb85a80000000000000001000a537461746553746f7265000000000000000000007680fd98e8",
	},
	{
		"a key with everything",
		Item{
			Kind: KindKey, Key: "\x00\xff", Value: "\x00\r\n", Version: hlc.Timestamp{Wall: 1, Counter: math.MaxUint64, Node: "é"},
			Token: hlc.Token{Wall: math.MaxInt64, Node: "n"}, Lifetime: 1500 * time.Millisecond,
		},
		"6b00ff", "02010000000000000001ffffffffffffffff0002c3a9017fffffffffffffff000000000000000000016e0000000059682f0000000d0a8249bf21",
	},
	{"a fence", Item{Kind: KindFence, Key: "k", Token: hlc.Token{Wall: 2, Counter: 3, Node: "n"}}, "6b6b", "02020000000000000002000000000000000300016ea3791cf4"},
	{
		"a reply",
		Item{
			Kind: KindReply, Client: "c", Sequence: 7, Verb: VerbSet, Outcome: OK, Version: hlc.Timestamp{Wall: 4, Counter: 5, Node: "n"},
			slot: 258, request: fingerprint{correlation: correlate([]byte("0123456789")), sum: 0xdeadbeef},
		},
		"726300000102", "0203000000000000000701010a30313233343536373839000000000000deadbeef010000000000000004000000000000000500016e255f8fa1",
	},
	{
		"a reply without a version",
		Item{
			Kind: KindReply, Client: "", Sequence: 1, Verb: VerbDel, Outcome: NothingThere,
			request: fingerprint{correlation: correlate([]byte(strings.Repeat("x", 17)))},
		},
		"7200000000", "020300000000000000010306ffd04fd59f3d9a1fd424c47874ae1dab0d0000000000ca6feb80",
	},
	{"the identity", Item{Kind: KindIdentity, Identity: "the data", HoldOff: true}, "69", "0204017468652064617461ae539265"},
	{"no identity", Item{Kind: KindIdentity}, "69", "0204001e00fa24"},
	{
		"a lease",
		Item{
			Kind: KindKey, Key: "k", Value: "v", Version: hlc.Timestamp{Wall: noon, Counter: 1, Node: "n"}, Lifetime: time.Second,
			Client: "a", User: "ana", Since: noon,
		},
		"6b6b", "02010000018af7cb85a8000000000000000100016e00000000003b9aca00010000018af7cb85a8000000016100000003616e617633da92c4",
	},
	{
		"a change of a lease",
		Item{
			Kind: KindChange, Client: "b", User: "ana", Sequence: 7, slot: 258, Change: HolderChange{
				Name: "k", Cause: CauseForced, From: "a", To: "b", By: "b", ByUser: "ana", Forced: "it hangs", Ended: wallOf(noon),
				Began: wallOf(noon + 5), Disconnected: wallOf(noon - 5), GapMillis: 5, HeldMillis: 6, Repeated: 1,
			},
		},
		"6800000102", "02060000000000000007000000016b00000006666f7263656400000001610000000162000000016200000003616e610000000869742068616e6773000000016200000003616e610000018af7cb85a80000018af7cb85ad0000018af7cb85a30000000000000005000000000000000600000000000000018bc743b6",
	},
	{"the bound", Item{Kind: KindBound, Version: hlc.Timestamp{Wall: noon, Counter: 6}}, "62", "02050000018af7cb85a8000000000000000623a6c81e"},
	{
		"a key that ends with its connection",
		Item{Kind: KindKey, Key: "k", Value: "v", Version: hlc.Timestamp{Wall: noon, Counter: 1, Node: "StateStore"}, Lifetime: time.Second, Willed: true},
		"6b6b", "02010000018af7cb85a80000000000000001000a537461746553746f726500800000003b9aca0000760f40b043",
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

// Names of any length have an ID of bounded length, and no two have the same.
func TestIDsAreShortAndDistinct(t *testing.T) {
	seen := make(map[string]string)
	long := strings.Repeat("x", maxName)
	for _, name := range []string{"k", "K", "r", "", "\x00", "\x00\x00\x00\x00", "c\x00\x00\x00\x00", long, long + "x", long + "y", "y" + long, strings.Repeat("x", 1<<20)} {
		reply := Item{Kind: KindReply, Client: name, Verb: VerbSet, Outcome: OK, request: fingerprint{correlation: correlate([]byte("1"))}}
		later := reply
		later.slot = maxSlot - 1
		items := []Item{reply, later}
		if name != "" {
			items = append(items, Item{Kind: KindKey, Key: name, Value: name, Version: hlc.Timestamp{Wall: 1, Node: "n"}})
		}
		for _, item := range items {
			record := item.Record()
			if len(record.ID) > MaxID || cap(record.ID) > len(record.ID) || seen[string(record.ID)] != "" {
				t.Errorf("the ID of %.20q has %d bytes, room for %d, and is shared with %.20q", name, len(record.ID), cap(record.ID), seen[string(record.ID)])
			}
			seen[string(record.ID)] = name + "."
			if got, err := record.Decode(); err != nil || got != item {
				t.Errorf("%v %.20q: decoded another item, %v", item.Kind, name, err)
			}
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
		record := Item{Kind: KindKey, Key: "key", Value: "value", Version: hlc.Timestamp{Wall: 1, Node: "n"}, Token: hlc.Token{Wall: 2, Node: "m"}}.Record()
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
	long := Item{Kind: KindKey, Key: strings.Repeat("k", 2000), Version: hlc.Timestamp{Wall: 1, Node: "n"}}.Record()
	tests := []struct {
		name   string
		record Record
		cause  string
		is     error
	}{
		{"no value", Record{ID: []byte("kk")}, "has 0 bytes", ErrDamaged},
		{"a short value", Record{ID: []byte("kk"), Value: []byte("12345")}, "has 5 bytes", ErrDamaged},
		{"no ID", sign(nil, append([]byte{format, byte(KindBound)}, make([]byte, 20)...)), "does not belong to the ID", ErrDamaged},
		{"the ID of another key", Record{ID: []byte("kother"), Value: key(at(0, format)).Value}, "wrong checksum", ErrDamaged},
		{"a newer format", key(at(0, format+1)), "has format 3, this version reads up to 2", ErrNewerFormat},
		{"an earlier format", key(at(0, format-1)), "has format 1, which no release wrote", ErrDamaged},
		{"an unknown kind", key(at(1, 9)), "Kind(9)", ErrDamaged},
		{"another kind", key(at(1, byte(KindBound))), "does not belong to the ID", ErrDamaged},
		{"a negative wall clock", key(at(2, 0x80)), "negative", ErrDamaged},
		{"a node that is longer than the value", key(at(18, 0xff)), "missing", ErrDamaged},
		{"a node with a colon", key(at(20, ':')), "malformed", ErrDamaged},
		{"a flag that is none", key(at(21, 2)), "neither 0 nor 1", ErrDamaged},
		{"an empty key", key(func(_, value []byte) ([]byte, []byte) { return []byte("k"), value }), "empty", ErrDamaged},
		{"a long key as it is", key(func(_, value []byte) ([]byte, []byte) { return append([]byte("k"), make([]byte, maxName+1)...), value }), "too long", ErrDamaged},
		{"a short name with a hash", key(func(_, value []byte) ([]byte, []byte) { return append([]byte("K"), make([]byte, 32)...), value }), "wrong", ErrDamaged},
		{"the hash of another name", sign(append([]byte("K"), make([]byte, 32)...), long.Value), "not the hash", ErrDamaged},
		{"bytes after the end", sign([]byte("b"), append([]byte{format, byte(KindBound)}, make([]byte, 21)...)), "after the end", ErrDamaged},
		{"a bound that is cut short", sign([]byte("b"), append([]byte{format, byte(KindBound)}, make([]byte, 19)...)), "missing", ErrDamaged},
		{"bytes after the ID", sign([]byte("bb"), append([]byte{format, byte(KindBound)}, make([]byte, 20)...)), "after the end", ErrDamaged},
		{"a reply without a slot", sign([]byte("r12"), goldenItems[3].item.Record().Value), "too short", ErrDamaged},
		{"a slot that is too high", reply(func(i *Item) { i.slot = maxSlot }), "not one that a store remembers", ErrDamaged},
		{"the reply to a GET", reply(func(i *Item) { i.Verb = VerbGet }), "not one that a store remembers", ErrDamaged},
		{"a refusal", reply(func(i *Item) { i.Outcome = Refused }), "not one that a store remembers", ErrDamaged},
		{"no correlation data", reply(func(i *Item) { i.request.correlation = correlation{} }), "not one that a store remembers", ErrDamaged},
		{"correlation data after its end", reply(func(i *Item) { i.request.correlation.data[15] = 1 }), "not one that a store remembers", ErrDamaged},
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

func TestEveryFlippedBitIsFound(t *testing.T) {
	for _, golden := range goldenItems {
		id, value := unhex(t, golden.id), unhex(t, golden.value)
		for _, part := range [][]byte{id, value} {
			for i := range part {
				for bit := range 8 {
					part[i] ^= 1 << bit
					if _, err := (Record{ID: id, Value: value}).Decode(); !errors.Is(err, ErrDamaged) {
						t.Errorf("%s: %x %x: %v", golden.name, id, value, err)
					}
					part[i] ^= 1 << bit
				}
			}
		}
	}
}

// Invariant 44 for records: any bytes are refused, or decode to an item whose record is the
// same bytes; and nothing is allocated beyond a constant times their number.
func FuzzDecodeRecord(f *testing.F) {
	for _, golden := range goldenItems {
		f.Add(unhex(f, golden.id), unhex(f, golden.value), true)
	}
	long := Item{Kind: KindKey, Key: strings.Repeat("k", 2000), Version: hlc.Timestamp{Wall: 1, Node: "n"}}.Record()
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
		if size := len(item.Key) + len(item.Value) + len(item.Client) + len(item.Identity) + len(item.Version.Node) + len(item.Token.Node); size > len(id)+len(value) {
			t.Errorf("an item of %d bytes from %d", size, len(id)+len(value))
		}
		again := item.Record()
		if string(again.ID) != string(record.ID) || string(again.Value) != string(record.Value) {
			t.Errorf("%+v has the record %x %x; it was decoded from %x %x", item, again.ID, again.Value, record.ID, record.Value)
		}
	})
}
