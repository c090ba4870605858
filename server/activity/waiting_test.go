package activity

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

// One that watches all it can does not hide which client stands by for a lease of another user.
func TestAFloodOfWatchesHidesNoClientThatWaits(t *testing.T) {
	watch := func(w *world, client, user, key string) {
		w.tell(Event{Kind: Request, Client: client, User: user, Verb: statestore.VerbKeyNotify, Key: key, Rank: -1, Outcome: statestore.OK})
	}
	waits := func(w *world, client string) bool {
		return slices.ContainsFunc(w.lease("k").Waiting, func(x Waiter) bool { return x.Client == client })
	}
	for name, user := range map[string]string{"another user": "mallory", "no users": ""} {
		bob := "bob"
		if user == "" {
			bob = ""
		}
		t.Run(name+", all names", func(t *testing.T) {
			w := newWorld(t, Options{Clients: 50})
			w.set("a", "k")
			for i := range 40 {
				for k := range namesOf {
					watch(w, fmt.Sprint("m", i), user, fmt.Sprint("m", k, "-", i/8))
				}
			}
			for _, n := range w.model.names {
				if l := n.value; l.key != "k" && len(l.waiters) < 8 && l.hidden == (hidden{}) {
					t.Fatalf("%s has lost a waiter, and does not say so", l.key)
				}
			}
			watch(w, "standby", bob, "k")
			if !waits(w, "standby") {
				t.Errorf("it is not shown; %d wait for other names", w.model.waits.count)
			}
			for i := range 40 {
				watch(w, fmt.Sprint("m", i), user, "more")
			}
			checkBounds(t, w.model)
			if !waits(w, "standby") {
				t.Error("it is not shown any more")
			}
		})
		t.Run(name+", one name", func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set("a", "k")
			for i := range 100 {
				watch(w, fmt.Sprint("m", i), user, "k")
			}
			w.tell(Event{Kind: Request, Client: "standby", User: bob, Verb: statestore.VerbSet, Key: "k", Condition: statestore.IfMissingOrEqual,
				Lifetime: ttl, Holder: "standby", Rank: -1, Outcome: statestore.ConditionFailed, Version: w.setTo["k"]})
			for i := range 100 {
				watch(w, fmt.Sprint("n", i), user, "k")
			}
			checkBounds(t, w.model)
			if !waits(w, "standby") {
				t.Error("the one that tries is not shown")
			}
			if user == "" {
				return
			}
			w.fails("standby-2", "k") // of a third user
			if !waits(w, "standby-2") {
				t.Error("the one of a third user is not shown")
			}
		})
	}
}

// A client that waits and is not remembered counts, or an alarm that needs one would be silent.
func TestAWaitingClientThatIsNotRememberedCounts(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a", "k")
	for i := range waitersOf + 1 {
		w.tell(Event{Kind: Request, Client: fmt.Sprint("c", i), Verb: statestore.VerbKeyNotify, Key: "k", Rank: -1, Outcome: statestore.OK})
	}
	for i := range waitersOf {
		w.tell(Event{Kind: Disconnected, Client: fmt.Sprint("c", i)})
	}
	w.after(ttl).tell(Event{Kind: Expired, Key: "k"})
	if l := w.lease("k"); len(l.Waiting)+l.WaitingHidden != 1 {
		t.Errorf("%d clients wait, %d hidden", len(l.Waiting), l.WaitingHidden)
	}
	w.set("b", "k")
	if l := w.lease("k"); l.WaitingHidden != 0 {
		t.Error("one is hidden though the lease has another holder")
	}
}

// It counts for as long as one that is remembered, or a name for which no client waits would be an alarm that
// does not end.
func TestAWaitingClientThatIsNotRememberedCountsNoLongerThanItWaits(t *testing.T) {
	hidden := func(w *world) bool { // beyond those that are only not shown
		remembered := 0
		for _, x := range w.model.names["k"].value.waiters {
			if x.isWaiting(w.now) {
				remembered++
			}
		}
		l := w.lease("k")
		return len(l.Waiting)+l.WaitingHidden > remembered
	}
	watch := func(w *world, client, key string) {
		w.tell(Event{Kind: Request, Client: client, Verb: statestore.VerbKeyNotify, Key: key, Rank: -1, Outcome: statestore.OK})
	}
	bid := func(w *world, client string, lifetime time.Duration) {
		w.tell(Event{Kind: Request, Client: client, Verb: statestore.VerbSet, Key: "k" + protocol.FailBackSuffix, Lifetime: lifetime, Rank: 1, Outcome: statestore.OK})
	}
	check := func(t *testing.T, w *world, when string, want bool) {
		t.Helper()
		if hidden(w) != want {
			t.Errorf("%s: a client that is not remembered counts: %v, want %v", when, !want, want)
		}
		checkBounds(t, w.model)
	}
	for name, test := range map[string]func(*testing.T, *world){
		"it tries": func(t *testing.T, w *world) {
			for i := range waitersOf + 1 {
				w.fails(fmt.Sprint("c", i), "k")
			}
			for i := range waitersOf + 1 {
				w.tell(Event{Kind: Disconnected, Client: fmt.Sprint("c", i)})
			}
			w.releases("a", "k")
			check(t, w, "soon after its attempt", true)
			w.after(attemptLasts + time.Second)
			check(t, w, "long after its attempt", false)
		},
		"it tries, and waits for many names": func(t *testing.T, w *world) {
			for i := range namesOf {
				w.set("a", fmt.Sprint("n", i))
				w.fails("b", fmt.Sprint("n", i))
			}
			w.fails("b", "k")
			w.releases("a", "k")
			check(t, w, "soon after its attempt", true)
			w.after(attemptLasts + time.Second)
			check(t, w, "long after its attempt", false)
		},
		"it tried, and one that tries took its place": func(t *testing.T, w *world) {
			w.tell(Event{Kind: Request, Client: "old", User: "u", Verb: statestore.VerbSet, Key: "k", Condition: statestore.IfMissingOrEqual,
				Lifetime: ttl, Rank: -1, Outcome: statestore.ConditionFailed, Version: w.setTo["k"]})
			for i := range waitersOf {
				w.tell(Event{Kind: Request, Client: fmt.Sprint("c", i), User: "u", Verb: statestore.VerbSet, Key: "k", Condition: statestore.IfMissingOrEqual,
					Lifetime: ttl, Rank: -1, Outcome: statestore.ConditionFailed, Version: w.setTo["k"]})
			}
			w.fails("b", "k") // of another user
			w.releases("a", "k")
			check(t, w, "soon after its attempt", true)
			w.after(attemptLasts + time.Second)
			check(t, w, "long after its attempt", false)
		},
		"it watches": func(t *testing.T, w *world) {
			for i := range waitersOf + 2 {
				watch(w, fmt.Sprint("c", i), "k")
			}
			for i := range waitersOf + 1 {
				w.tell(Event{Kind: Disconnected, Client: fmt.Sprint("c", i)})
			}
			w.releases("a", "k")
			w.after(50 * time.Minute)
			check(t, w, "while the last one is connected", true)
			w.tell(Event{Kind: Disconnected, Client: fmt.Sprint("c", waitersOf+1)})
			check(t, w, "with its connection", false)
			for i := range waitersOf + 1 {
				watch(w, fmt.Sprint("d", i), "other")
			}
			check(t, w, "when another name has one", false)
		},
		"it watches, and connects again": func(t *testing.T, w *world) {
			for i := range waitersOf + 1 {
				watch(w, fmt.Sprint("c", i), "k")
			}
			w.tell(Event{Kind: Connected, Client: fmt.Sprint("c", waitersOf)})
			check(t, w, "with its connection", false)
		},
		"it watched, and one that tries took its place": func(t *testing.T, w *world) {
			for i := range waitersOf {
				watch(w, fmt.Sprint("c", i), "k")
			}
			w.fails("b", "k")
			w.releases("a", "k")
			w.after(50 * time.Minute)
			check(t, w, "while all are connected", true)
			for i := range waitersOf {
				w.tell(Event{Kind: Disconnected, Client: fmt.Sprint("c", i)})
			}
			check(t, w, "with its connection", false)
		},
		"it bids": func(t *testing.T, w *world) {
			for i := range waitersOf {
				w.fails(fmt.Sprint("c", i), "k")
			}
			bid(w, "b", 10*time.Minute)
			w.releases("a", "k")
			w.after(5 * time.Minute)
			check(t, w, "during its request", true)
			w.after(5 * time.Minute)
			check(t, w, "after its request", false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set("a", "k")
			test(t, w)
		})
	}
	t.Run("it watches, and is forgotten", func(t *testing.T) {
		w := newWorld(t, Options{Clients: waitersOf + 2})
		w.set("a", "k")
		for i := range waitersOf + 1 {
			watch(w, fmt.Sprint("c", i), "k")
		}
		check(t, w, "while it is known", true)
		for i := range 2 * waitersOf {
			w.tell(Event{Kind: Connected, Client: fmt.Sprint("d", i)})
		}
		check(t, w, "when it is forgotten", false)
	})
}
