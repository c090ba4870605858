package pair_test

import (
	"strings"
	"testing"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/pair"
)

// The checks must be able to fail.
func TestTheChecksFindAStaleWriteAndALateOne(t *testing.T) {
	at := func(wall int64) hlc.Timestamp { return hlc.Timestamp{Wall: wall, Node: "StateStore"} }
	write := func(version, token int64) pair.Event {
		return pair.Event{Kind: pair.KindWrite, Outcome: pair.Accepted, Version: at(version), Token: hlc.Token(at(token))}
	}
	const late = "the late write was refused"
	for _, test := range []struct {
		name string
		harm func(*pair.Writes)
		want string // the checks that fail
	}{
		{"nothing is wrong", func(*pair.Writes) {}, ""},
		{"a stale write was reported", func(w *pair.Writes) { w.Add(write(25, 10)) }, "stale writes accepted: 0"},
		{"a stale write is in the store", func(w *pair.Writes) { w.History.Saw(at(25), hlc.Token(at(10))) }, "stale writes accepted: 0"},
		{"a write is known already", func(w *pair.Writes) { w.History.Saw(at(21), hlc.Token(at(10))) }, ""},
		{"a late write was accepted", func(w *pair.Writes) {
			e := write(31, 20)
			e.Late = true
			w.Add(e)
		}, late},
		{"the outcome of a late write is unknown", func(w *pair.Writes) { w.Add(pair.Event{Late: true, Outcome: pair.Unknown}) }, late},
		{"there was no late write", func(w *pair.Writes) { w.Late = nil }, late},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := pair.NewWrites()
			w.Add(write(21, 20))
			w.Add(write(11, 10))
			w.Add(pair.Event{Kind: pair.KindWrite, Outcome: pair.Unknown, Version: at(90)})
			w.Add(pair.Event{Kind: pair.KindWrite, Late: true, Outcome: pair.RefusedByStore, Token: hlc.Token(at(10))})
			if w.Highest.Version != at(21) {
				t.Errorf("the highest version is %v", w.Highest.Version)
			}
			test.harm(&w)
			var checks pair.Checks
			w.CheckStale(&checks)
			w.CheckLate(&checks, late)
			var failed []string
			for _, c := range checks {
				if !c.OK {
					failed = append(failed, c.Name)
				}
			}
			if got := strings.Join(failed, ", "); len(checks) != 2 || got != test.want || checks.OK() != (got == "") {
				t.Errorf("%d checks, of which %q failed, want %q; OK: %t", len(checks), got, test.want, checks.OK())
			}
		})
	}
}
