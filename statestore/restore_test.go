package statestore

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

func TestRestoreRefusesWhatItCannotKeep(t *testing.T) {
	without := func(id string) func(disk) {
		return func(d disk) { delete(d, id) }
	}
	with := func(item Item) func(disk) {
		return func(d disk) { d.write([]Group{{item.Record()}}) }
	}
	reply := Item{Kind: KindReply, Client: "c", Sequence: 1, Verb: VerbSet, Outcome: OK, slot: 77, request: fingerprint{correlation: correlate([]byte("x"))}}
	for _, test := range []struct {
		name    string
		options Options
		damage  func(disk)
		cause   string // empty: it is restored
		is      error
	}{
		{"nothing wrong", Options{Strict: true}, func(disk) {}, "", nil},
		{"another identity in the options", Options{Strict: true, Identity: "other"}, func(disk) {}, "", nil},
		{"limits that are too low", Options{Strict: true, MaxKeys: 1, MaxBytes: 1, MaxValue: 1, DedupWindow: 1}, func(disk) {}, "", nil},
		{"a fence, and the store is not strict", Options{}, func(disk) {}, "start the store with Options.Strict", nil},
		{"no fence, and the store is not strict", Options{}, without("kfenced"), "", nil},
		{"no identity", Options{Strict: true}, without("i"), "it has no identity", ErrDamaged},
		{"no bound", Options{Strict: true}, without("b"), "it has no bound", ErrDamaged},
		{"a version above the bound", Options{Strict: true}, with(Item{Kind: KindBound, Version: hlc.Timestamp{Wall: 5}}), "is above the bound", ErrDamaged},
		{"two replies of one sequence", Options{Strict: true}, with(reply), "the sequence 1", ErrDamaged},
		{"a value that is cut short", Options{Strict: true}, func(d disk) { d["kk"] = d["kk"][:9] }, "wrong checksum", ErrDamaged},
		{"a bound without a successor", Options{Strict: true}, with(Item{Kind: KindBound, Version: hlc.Timestamp{Wall: math.MaxInt64, Counter: math.MaxUint64}}),
			"no version is left", ErrDamaged},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := filledDisk(t)
			test.damage(d)
			store, _, err := d.open(test.options, Instant{WallMillis: noon})
			switch {
			case test.cause == "" && err != nil:
				t.Fatal(err)
			case test.cause == "":
				if store.Usage().Keys != 2 || store.Identity() != "the data" {
					t.Errorf("there are %+v, identity %q", store.Usage(), store.Identity())
				}
			case err == nil || !strings.Contains(err.Error(), test.cause) || test.is != nil && !errors.Is(err, test.is):
				t.Errorf("the error is %v; want %q", err, test.cause)
			}
		})
	}
}

// Any records are refused, or give a store that works, and whose snapshot gives the same store.
func FuzzRestore(f *testing.F) {
	appendRecord := func(dst []byte, id, value []byte) []byte {
		dst = append(dst, byte(len(id)), byte(len(value)))
		return append(append(dst, id...), value...)
	}
	var all []byte
	d := filledDisk(f)
	for _, id := range slices.Sorted(maps.Keys(d)) {
		all = appendRecord(all, []byte(id), d[id])
	}
	f.Add(all, true)
	f.Add(all, false)
	f.Fuzz(func(t *testing.T, records []byte, strict bool) {
		store, err := New(Options{Strict: strict, Journaled: true})
		if err != nil {
			t.Fatal(err)
		}
		for len(records) >= 2 {
			id, value := int(records[0]), int(records[1])
			if records = records[2:]; len(records) < id+value || value < sumSize {
				break
			}
			if err := store.Restore(sign(records[:id], slices.Clone(records[id:id+value]))); err != nil {
				return
			}
			records = records[id+value:]
		}
		now := Instant{WallMillis: noon}
		if _, err := store.Restored(now, Former{}); err != nil {
			return
		}
		was := describe(store)
		copied := make(disk)
		for record := range store.Snapshot() {
			copied[string(record.ID)] = record.Value
		}
		again, _, err := copied.open(Options{Strict: strict}, now)
		if err != nil {
			t.Fatalf("the snapshot is refused: %v", err)
		}
		if got := describe(again); !maps.Equal(got, was) {
			t.Fatalf("the copy has\n%v; want\n%v", got, was)
		}
		r := &crashRun{world: &world{tb: t, store: store, now: now}}
		r.usage()
		store.Begin(now)
		r.pass(time.Hour)
		ts := "1:0:n"
		for _, verb := range []string{"GET", "SET", "DEL"} {
			words := []string{verb, "k", "v"}[:map[string]int{"GET": 2, "SET": 3, "DEL": 2}[verb]]
			store.Apply(r.now, Parse(Request{Client: "c", Payload: []byte(payload(words...)), Timestamp: &ts, Delivery: Redelivery, Correlation: []byte(verb)}))
		}
		for more := true; more; {
			_, more = store.Expire(r.now, 10)
		}
		for _, client := range store.RestoredClients() {
			store.EndSession(Instant{}, client)
		}
		r.usage()
	})
}

// A snapshot is what a journal has that kept all groups.
func TestASnapshotRestoresTheSameStore(t *testing.T) {
	d := filledDisk(t)
	w := d.world(t, Options{Strict: true})
	copied := make(disk)
	for record := range w.store.Snapshot() {
		if copied[string(record.ID)] != nil {
			t.Errorf("record %q comes twice", record.ID)
		}
		copied[string(record.ID)] = record.Value
	}
	again, _, err := copied.open(Options{Strict: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(again), describe(w.store); !maps.Equal(got, want) || len(want) != 10 {
		t.Errorf("the copy has\n%v; want\n%v", got, want)
	}
	for range w.store.Snapshot() {
		break // a caller may stop early
	}
}
