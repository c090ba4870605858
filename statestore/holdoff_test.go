package statestore

import (
	"strings"
	"testing"
	"time"
)

// A store that starts empty does not know the leases of the store before it.
func TestInvariant47AStoreGrantsNoLeaseDuringHoldOff(t *testing.T) {
	const hold = 10 * time.Second
	for request, answer := range map[string]string{ // without its version: a refusal has none, as there is no holder
		"SET lock a NEX PX 1000": ":-1\r\n", "SET lock a NX PX 1000": ":-1\r\n",
		"SET k v NEX": "+OK\r\n", "SET k v PX 1000": "+OK\r\n", "SET k v": "+OK\r\n",
	} {
		w := newWorld(t, Options{HoldOff: hold})
		w.store.Begin(w.now)
		for _, step := range []struct {
			pass            time.Duration
			request, answer string
		}{{0, request, answer}, {hold - 1, request, answer}, {1, "SET another a NEX PX 1000", "+OK\r\n"}} {
			w.pass(step.pass)
			if got, _ := w.send(ask(step.request)); got != step.answer && (step.answer == ":-1\r\n" || !strings.HasPrefix(got, step.answer)) {
				t.Errorf("%s: %q, want %q", step.request, got, step.answer)
			}
		}
	}
}

// cutVersion splits a reply of send.
func cutVersion(answer string) (payload, version string) {
	payload, version, _ = strings.Cut(answer, "@")
	return payload, version
}

// Invariant 47: hold-off is for data that was lost, and survives a crash in its middle.
func TestInvariant47HoldOffAppliesOnlyWithoutData(t *testing.T) {
	const hold = 10 * time.Second
	d := make(disk)
	var w *world
	start := func(when string, grants bool) {
		t.Helper()
		w = d.world(t, Options{HoldOff: hold})
		w.store.Begin(w.now)
		if answer, _ := w.send(ask("SET lock a NEX PX 1000")); strings.HasPrefix(answer, "+OK") != grants {
			t.Errorf("%s: %q", when, answer)
		}
	}
	reserve := func() {
		if group := w.store.Reserve(w.now); group != nil {
			d.write([]Group{group})
		}
	}
	start("without data", false)
	reserve()
	start("after a crash in the hold-off", false)
	d.world(t, Options{}) // started without it by mistake, and ended before it had granted anything
	start("after a store that had granted nothing", false)
	w.pass(hold)
	reserve()
	w.deliver("c", "1", "SET", "k", "v")
	start("with data", true)
	if make(disk).world(t, Options{}).store.holding {
		t.Error("a store without a hold-off says that it is not over")
	}
}

// A restored backup has leases that their holders gave up after it, and not those that others got
// then. So in the hold-off an old value in the data grants nothing either.
func TestInvariant47ALeaseInABackupIsNotGrantedAgainDuringHoldOff(t *testing.T) {
	const hold = 10 * time.Second
	d := make(disk)
	w := d.world(t, Options{})
	w.deliver("c", "1", "SET", "lock", "a", "NEX", "PX", "10000")
	d.write([]Group{{Item{Kind: KindIdentity, Identity: "restored", HoldOff: true}.Record()}})

	w = d.world(t, Options{HoldOff: hold})
	w.store.Begin(w.now)
	for _, test := range []struct{ request, answer string }{
		{"SET lock a NEX PX 10000", ":-1\r\n"},
		{"SET lock a NX PX 10000", ":-1\r\n"},
		{"SET other a PX 10000", "+OK\r\n"},
		{"SET other a NEX PX 10000", "+OK\r\n"}, // set since, so it is this client's
	} {
		answer, _ := w.send(ask(test.request))
		if payload, _ := cutVersion(answer); payload != test.answer {
			t.Errorf("during hold-off %s: %q, want %q", test.request, answer, test.answer)
		}
	}
	w.pass(hold)
	if answer, _ := w.send(ask("SET lock a NEX PX 10000")); !strings.HasPrefix(answer, "+OK") {
		t.Errorf("after hold-off: %q", answer)
	}
	w = d.world(t, Options{}) // the operator gave no hold-off
	if answer, _ := w.send(ask("SET lock a NEX PX 10000")); !strings.HasPrefix(answer, "+OK") {
		t.Errorf("without a hold-off: %q", answer)
	}
}

func TestAStoreContinuesIfItFindsDataThatWasInUse(t *testing.T) {
	d := make(disk)
	continues := func(options Options, want bool, when string) {
		t.Helper()
		w := d.world(t, options)
		w.store.Begin(w.now)
		if got := w.store.Continues(); got != want {
			t.Errorf("%s: %t", when, got)
		}
	}
	continues(Options{}, false, "without data")
	continues(Options{}, false, "with an identity and a bound only")
	w := d.world(t, Options{})
	w.deliver("c", "1", "SET", "k", "v")
	continues(Options{}, true, "with a key")
	d.write([]Group{{Item{Kind: KindIdentity, Identity: "restored", HoldOff: true}.Record()}})
	continues(Options{}, false, "restored from a backup")
	continues(Options{}, true, "restored, and started again")
}
