package statestore

import (
	"strings"
	"testing"
	"time"
)

// A store that starts empty does not know the leases of the store before it.
func TestInvariant47AStoreGrantsNoLeaseDuringHoldOff(t *testing.T) {
	const hold = 10 * time.Second
	for _, test := range []struct {
		name    string
		request string
		answer  string // without its version
	}{
		{"a lease", "SET lock a NEX PX 1000", ":-1\r\n"},
		{"a lease by NX", "SET lock a NX PX 1000", ":-1\r\n"},
		{"a claim", "SET k v NEX", "+OK\r\n"},
		{"a value that expires", "SET k v PX 1000", "+OK\r\n"},
		{"a value", "SET k v", "+OK\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{HoldOff: hold})
			w.now.Elapsed = hold - 1
			answer, _ := w.send(ask(test.request))
			if payload, _ := cutVersion(answer); payload != test.answer {
				t.Errorf("during hold-off: %q, want %q", answer, test.answer)
			}
			if _, version := cutVersion(answer); test.answer == ":-1\r\n" && version != "" {
				t.Errorf("the refusal carries version %q, and there is no holder", version)
			}
			w.now.Elapsed = hold
			answer, _ = w.send(ask("SET another a NEX PX 1000"))
			if payload, _ := cutVersion(answer); payload != "+OK\r\n" {
				t.Errorf("after hold-off: %q", answer)
			}
		})
	}
}

func TestInvariant47HoldOffCountsFromBegin(t *testing.T) {
	const hold = 10 * time.Second
	w := newWorld(t, Options{HoldOff: hold})
	w.now.Elapsed = time.Hour
	w.store.Begin(w.now)
	for _, test := range []struct {
		after  time.Duration
		answer string
	}{{0, ":-1\r\n"}, {hold - 1, ":-1\r\n"}, {hold, "+OK\r\n"}} {
		w.now.Elapsed = time.Hour + test.after
		answer, _ := w.send(ask("SET lock a NEX PX 1000"))
		if payload, _ := cutVersion(answer); payload != test.answer {
			t.Errorf("%v after Begin: %q, want %q", test.after, answer, test.answer)
		}
	}
}

// Hold-off does not apply to a key that exists.
func TestHoldOffLetsAHolderRenew(t *testing.T) {
	w := newWorld(t, Options{HoldOff: time.Minute})
	w.now.Elapsed = 0
	w.set(ask("SET lock a PX 1000"))
	answer, _ := w.send(ask("SET lock a NEX PX 1000"))
	if payload, _ := cutVersion(answer); payload != "+OK\r\n" {
		t.Errorf("a renewal during hold-off: %q", answer)
	}
}

func TestNegativeHoldOffIsRefused(t *testing.T) {
	if _, err := New(Options{HoldOff: -1}); err == nil {
		t.Error("New takes a negative hold-off")
	}
}

// cutVersion splits a reply of send.
func cutVersion(answer string) (payload, version string) {
	payload, version, _ = strings.Cut(answer, "@")
	return payload, version
}
