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

// Any records are refused, or give a store that works.
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
		seen := make(map[string]bool)
		for len(records) >= 2 {
			id, value := int(records[0]), int(records[1])
			if records = records[2:]; len(records) < id+value || value < sumSize || seen[string(records[:id])] {
				break
			}
			seen[string(records[:id])] = true // a journal has each once
			if err := store.Restore(sign(records[:id], slices.Clone(records[id:id+value]))); err != nil {
				return
			}
			records = records[id+value:]
		}
		now := Instant{WallMillis: noon}
		if _, err := store.Restored(now, Former{}); err != nil {
			return
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
			store.EndSession(client)
		}
		r.usage()
	})
}
