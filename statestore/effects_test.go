package statestore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// texts returns a line for each group, with a text for each of its records.
func texts(t *testing.T, groups []Group) (lines []string) {
	t.Helper()
	for _, group := range groups {
		var words []string
		for _, record := range group {
			if record.Value == nil {
				words = append(words, "gone "+strconv.Quote(string(record.ID)))
				continue
			}
			item, err := record.Decode()
			if err != nil {
				t.Fatal(err)
			}
			switch item.Kind {
			case KindKey:
				words = append(words, fmt.Sprintf("key %s=%s %d:%d ft %d px %v", item.Key, item.Value, item.Version.Wall-noon, item.Version.Counter, item.Token.Wall, item.Lifetime))
			case KindFence:
				words = append(words, fmt.Sprintf("fence %s %d", item.Key, item.Token.Wall))
			case KindChange:
				words = append(words, fmt.Sprintf("%s %s", item.Change.Name, item.Change.Cause))
			case KindReply:
				words = append(words, fmt.Sprintf("reply %s %v %v", item.Client, item.Verb, item.Outcome))
			case KindBound:
				words = append(words, fmt.Sprintf("bound %d:%d", item.Version.Wall-noon, item.Version.Counter))
			default:
				words = append(words, fmt.Sprintf("%v %q %t", item.Kind, item.Identity, item.HoldOff))
			}
		}
		lines = append(lines, strings.Join(words, ", "))
	}
	return lines
}

// Invariant 59: a renewal has no record. And what does have one: each command that changes a
// value, a token, a longer lifetime, or a fence, with its reply in the same group.
func TestInvariant59OnlyWhatARestartMustKnowHasRecords(t *testing.T) {
	const begun = "SET lock a NEX PX 1000"
	for _, test := range []struct {
		name   string
		strict bool
		before []string // requests; a word of the form ft=5 is the token
		wait   time.Duration
		line   string
		groups []string
		keys   []string
	}{
		{"a new key", false, nil, 0, "SET k v", []string{"key k=v 0:1 ft 0 px 0s, reply c SET ok"}, []string{"k"}},
		{"a new lease", false, nil, 0, begun, []string{"key lock=a 0:1 ft 0 px 1s, lock acquired, reply c SET ok"}, []string{"lock"}},
		{"a renewal", false, []string{begun}, 500 * time.Millisecond, begun, nil, nil},
		{"a renewal for a shorter time", false, []string{begun}, 0, "SET lock a NEX PX 999", nil, nil},
		{"a renewal for longer", false, []string{begun}, 0, "SET lock a NEX PX 1001", []string{"key lock=a 0:2 ft 0 px 1.001s, reply c SET ok"}, []string{"lock"}},
		{"the record counts, not the last renewal", false, []string{begun, "SET lock a PX 10"}, 0, begun, nil, nil},
		{"a renewal without a condition", false, []string{begun}, 0, "SET lock a PX 1000", nil, nil},
		{"a renewal with a lower token than the fence", false, []string{begun + " ft=5"}, 0, begun + " ft=4", nil, nil},
		{"a renewal with the token of the fence", false, []string{begun + " ft=5"}, 0, begun + " ft=5", nil, nil},
		{"a renewal with a higher token", false, []string{begun + " ft=5"}, 0, begun + " ft=6", []string{"key lock=a 0:2 ft 6 px 1s, reply c SET ok"}, []string{"lock"}},
		{"a lease that becomes a value", false, []string{begun}, 0, "SET lock a", []string{"key lock=a 0:2 ft 0 px 0s, lock overwritten, reply c SET ok"}, []string{"lock"}},
		{"a value that becomes a lease", false, []string{"SET lock a"}, 0, begun, []string{"key lock=a 0:2 ft 0 px 1s, lock acquired, reply c SET ok"}, []string{"lock"}},
		{"a key with a lifetime that is set again on a condition", false, []string{"SET lock a PX 1000"}, 0, begun, nil, nil},
		{"the release of a lease", false, []string{begun}, 0, "VDEL lock a", []string{`gone "klock", lock released, reply c VDEL deleted`}, []string{"lock"}},
		{"the same value without a lifetime", false, []string{"SET k v"}, 0, "SET k v", []string{"key k=v 0:2 ft 0 px 0s, reply c SET ok"}, []string{"k"}},
		{"another value", false, []string{begun}, 0, "SET lock b PX 5", []string{"key lock=b 0:2 ft 0 px 5ms, reply c SET ok"}, []string{"lock"}},
		{"a lease after its end", false, []string{begun}, time.Second, begun,
			[]string{`gone "klock", lock expired`, "key lock=a 1000:1 ft 0 px 1s, lock expired, reply c SET ok"}, []string{"lock", "lock"}},
		{"a condition that fails", false, []string{begun}, 0, "SET lock b NEX PX 1000", nil, nil},
		{"a token that is too low", false, []string{"SET k v ft=5"}, 0, "SET k w ft=4", nil, nil},
		{"a read", false, []string{"SET k v"}, 0, "GET k", nil, nil},
		{"a read after the end", false, []string{begun}, time.Second, "GET lock", []string{`gone "klock", lock expired`}, []string{"lock"}},
		{"a refusal after the end", false, []string{"SET k v PX 5 ft=5"}, time.Second, "SET k v ft=-", []string{`gone "kk"`, "key k=v 1000:1 ft 0 px 0s, reply c SET ok"}, []string{"k", "k"}},
		{"a watch", false, []string{"SET k v"}, 0, "KEYNOTIFY k", nil, nil},
		{"a watch after the end", false, []string{begun}, time.Second, "KEYNOTIFY lock", []string{`gone "klock", lock expired`}, []string{"lock"}},
		{"a removal", false, []string{"SET k v"}, 0, "DEL k", []string{`gone "kk", reply c DEL deleted`}, []string{"k"}},
		{"a removal by value", false, []string{"SET k v"}, 0, "VDEL k v", []string{`gone "kk", reply c VDEL deleted`}, []string{"k"}},
		{"a removal of another value", false, []string{"SET k v"}, 0, "VDEL k w", nil, nil},
		{"a removal of nothing", false, nil, 0, "DEL k", nil, nil},
		{"the removal of a fenced key", false, []string{"SET k v ft=5"}, 0, "DEL k ft=5", []string{`gone "kk", reply c DEL deleted`}, []string{"k"}},
		{"strict: the removal of a fenced key", true, []string{"SET x v", "SET k v ft=5"}, 0, "DEL k ft=6", []string{"fence k 6, reply c DEL deleted"}, []string{"k"}},
		{"strict: the expiry of a fenced key", true, []string{"SET x v", "SET k v PX 5 ft=5"}, time.Second, "GET k", []string{"fence k 5"}, []string{"k"}},
		{"strict: a fence that rises", true, []string{"SET x v", "SET k v ft=5", "DEL k ft=5"}, 0, "DEL k ft=7", []string{"fence k 7, reply c DEL nothing there"}, []string{"k"}},
		{"strict: a fence that stays", true, []string{"SET x v", "SET k v ft=5", "DEL k ft=5"}, 0, "DEL k ft=5", nil, nil},
		{"strict: a fenced key again", true, []string{"SET x v", "SET k v ft=5", "DEL k ft=5"}, 0, "SET k w ft=5", []string{"key k=w 0:3 ft 5 px 0s, reply c SET ok"}, []string{"k"}},
		{"a version above the bound", false, []string{begun}, 0, "SET k v ts=31000", []string{"key k=v 31000:1 ft 0 px 0s, bound 31001:0, reply c SET ok"}, []string{"k"}},
		{"a renewal of a lease whose own version is above the durable bound", false, []string{begun + " ts=31000"}, 0, begun, []string{"bound 31001:0, reply c SET ok"}, []string{"lock"}},
		{"a renewal that would have a version above the bound", false, []string{begun}, 0, begun + " ts=31000", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := make(disk).world(t, Options{Strict: test.strict})
			w.store.Begin(w.now)
			sent := 0
			send := func(line string) (effects Effects, mayWrite bool) {
				t.Helper()
				ts := fmt.Sprintf("%d:0:c", w.now.WallMillis)
				request := Request{Client: "c", Timestamp: &ts}
				words := slices.DeleteFunc(strings.Split(line, " "), func(word string) bool {
					if token, is := strings.CutPrefix(word, "ft="); is {
						if token != "-" {
							token += ":0:n"
							request.FencingToken = &token
						}
						return true
					}
					if ahead, is := strings.CutPrefix(word, "ts="); is {
						millis, _ := strconv.Atoi(ahead)
						ts = fmt.Sprintf("%d:0:c", w.now.WallMillis+int64(millis))
						return true
					}
					return false
				})
				request.Payload = []byte(payload(words...))
				sent++
				request.Correlation, request.Delivery = []byte(strconv.Itoa(sent)), Redelivery
				command := Parse(request)
				mayWrite = w.store.MayWrite(w.now, &command)
				reply, effects := w.store.Apply(w.now, command)
				again, none := w.store.Apply(w.now, command)
				if words[0] != "GET" && again != asSent(reply) || len(none.Groups)+len(none.Keys) > 0 {
					t.Errorf("%s delivered again: %v, %v; the first time %v", line, again, none, reply)
				}
				return effects, mayWrite
			}
			for _, line := range test.before {
				send(line)
			}
			w.pass(test.wait)
			effects, mayWrite := send(test.line)
			free := test.groups == nil && (strings.Contains(test.line, "PX") || test.line[0] != 'S' && test.line[0] != 'D' && test.line[0] != 'V')
			if !mayWrite && test.groups != nil || mayWrite && free {
				t.Errorf("MayWrite is %t", mayWrite)
			}
			if got := texts(t, effects.Groups); !slices.Equal(got, test.groups) {
				t.Errorf("the records are\n%q; want\n%q", got, test.groups)
			}
			if !slices.Equal(effects.Keys, test.keys) {
				t.Errorf("the keys are %q; want %q", effects.Keys, test.keys)
			}
		})
	}
}

// A request that makes space by removing expired keys has a group for each, so that no group is
// larger than a journal can keep whole.
func TestEachExpiryIsAGroupOfItsOwn(t *testing.T) {
	const keys = 3 * MaxGroup
	w := make(disk).world(t, Options{MaxBytes: 1000})
	for i := range keys {
		w.set(ask(fmt.Sprintf("SET %03d v PX 5", i)))
	}
	w.pass(time.Second)
	ts := "1:0:n"
	reply, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("SET", "k", strings.Repeat("x", 999))), Timestamp: &ts}))
	if reply.Outcome != OK || len(effects.Groups) != keys+1 || len(effects.Keys) != keys+1 {
		t.Fatalf("%v, %d groups, %d keys", reply, len(effects.Groups), len(effects.Keys))
	}
	for i, group := range effects.Groups {
		if len(group) != 1 {
			t.Errorf("group %d has %d records", i, len(group))
		}
	}
}

// Invariant 59: any number of leases that renew has one record in 20 seconds, and none when it
// rests.
func TestInvariant59RenewalsMoveTheBoundOnceInTwentySeconds(t *testing.T) {
	w, ts := make(disk).world(t, Options{}), "1696374425000:0:a"
	records := 0
	for second := range 600 { // 10 minutes
		for i := range 10 {
			reply, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("SET", fmt.Sprint("lease", i), "a", "NEX", "PX", "60000")), Timestamp: &ts}))
			if reply.Outcome != OK || second > 0 && len(effects.Groups) > 0 {
				t.Fatalf("a renewal: %v, records %q", reply, texts(t, effects.Groups))
			}
		}
		if group := w.store.Reserve(w.now); group != nil {
			records += len(group)
			w.store.Committed(w.store.Bound())
		}
		w.pass(time.Second)
	}
	if records < 25 || records > 30 {
		t.Errorf("%d records in ten minutes; want one in 20 seconds", records)
	}
	for i := range 100 {
		w.pass(30 * time.Second) // the leases have a minute
		w.send(ask("GET k"))
		if group := w.store.Reserve(w.now); len(group) > 1 || i > 0 && group != nil {
			t.Fatalf("a store at rest writes %q", texts(t, []Group{group}))
		}
	}
}

// A change whose version is above the durable bound has the bound with it, until Committed says that the
// bound is durable. A renewal has a version below the bound that is durable, whatever moved the versions.
func TestAVersionAboveTheDurableBoundHasARecord(t *testing.T) {
	w := make(disk).world(t, Options{})
	const renewal = "SET lock a NEX PX 60000"
	for i, step := range []struct {
		ahead         int64
		line, version string
		bound         string // in the records; empty: there is none
	}{
		{0, renewal, "0:1", ""}, {29_998, renewal, "29998:1", ""}, {40_000, renewal, "29998:2", ""},
		{40_000, "SET k 1", "40000:1", "bound 40001:0"}, {59_000, renewal, "29998:3", ""},
		{40_000, "SET k 2", "40000:2", "bound 40001:0"}, {50_000, "SET k 3", "50000:1", "bound 50001:0"},
		{line: "commit"}, {0, renewal, "50000:2", ""}, {0, "SET k 4", "50000:3", ""},
	} {
		if step.line == "commit" {
			w.store.Committed(w.store.Bound())
			continue
		}
		ts := fmt.Sprintf("%d:0:c", w.now.WallMillis+step.ahead)
		reply, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload(strings.Split(step.line, " ")...)), Timestamp: &ts}))
		version, got := fmt.Sprintf("%d:%d", reply.Version.Wall-noon, reply.Version.Counter), strings.Join(texts(t, effects.Groups), "; ")
		if version != step.version || (step.bound != "") != strings.Contains(got, "bound") || !strings.Contains(got, step.bound) {
			t.Errorf("step %d, %s: the version is %s, the records are %q; want %s, %q", i, step.line, version, got, step.version, step.bound)
		}
	}
}

// Invariant 36: versions stay near the wall clock, however often a store crashes; and never go
// back, whatever the wall clock does.
func TestInvariant36ManyCrashesInARow(t *testing.T) {
	const tenYears = 10 * 365 * 86400_000
	for _, test := range []struct{ step, ahead int64 }{ // of the wall clock between two crashes; how far versions may be ahead, in milliseconds
		{0, 31_000}, {1, 31_000}, {15_000, 31_000}, {60_000, 0}, {-tenYears, tenYears + 31_000},
	} {
		t.Run(fmt.Sprint(test.step, " ms"), func(t *testing.T) {
			d, wall, last := make(disk), int64(noon), stamp{}
			for i := range 100 {
				store, first, err := d.open(Options{}, Instant{WallMillis: wall})
				if err != nil {
					t.Fatal(err)
				}
				d.write([]Group{first})
				store.Committed(store.Bound())
				ts := fmt.Sprintf("%d:0:c", wall)
				reply, effects := store.Apply(Instant{WallMillis: wall}, Parse(Request{Payload: []byte(payload("SET", "k", "v", "PX", "60000")), Timestamp: &ts}))
				d.write(effects.Groups)
				if ahead := reply.Version.Wall - wall; !stampOf(reply.Version).above(last) || ahead > test.ahead || reply.Version.Wall > max(wall, noon)+31_000 {
					t.Fatalf("after %d crashes, at %d, the version is %v; before %v", i, wall, reply.Version, last)
				}
				last = stampOf(reply.Version)
				wall = max(wall+test.step, noon-tenYears)
			}
		})
	}
}
