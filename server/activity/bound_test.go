package activity

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

// fill makes names leases that have changed hands and for which clients wait.
func (w *world) fill(clients, names, waiting int, client, key func(i int) string) {
	for i := range clients {
		w.tell(Event{Kind: Connected, Client: client(i), User: client(i), Remote: "10.1.4.7:50122"})
	}
	for i := range names {
		w.set(client(i%clients), key(i))
		w.after(time.Millisecond).deletes(Event{
			Client: client((i + 1) % clients), User: client(i % clients), Remote: "10.1.4.7:50122", Verb: statestore.VerbDel, Key: key(i), Forced: client(i % clients),
		})
		w.set(client((i+1)%clients), key(i))
		for k := range waiting {
			w.fails(client((i+k*7+2)%clients), key(i))
		}
		w.tell(Event{Kind: Request, Client: client(i % clients), User: client(i % clients), Verb: statestore.VerbSet, Key: key(i), Outcome: statestore.Refused,
			Refusal: string(protocol.FencingTokenLower), Rank: -1, HasClock: true, ClockOffset: time.Millisecond})
		w.after(time.Millisecond)
	}
}

// Clients choose the names of leases, holders and clients, and which of their characters must be escaped.
func TestAStateIsBoundedInBytes(t *testing.T) {
	for _, test := range []struct{ name, text string }{
		{"control characters", "\x01"},
		{"quotes", `"`},
		{"backslashes", `\`},
		{"markup", "<"},
		{"letters", "ö"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			long := func(kind string) func(int) string {
				return func(i int) string {
					number := fmt.Sprintf("%s%05d", kind, i)
					return strings.Repeat(test.text, (MaxKey-len(number))/len(test.text)) + number
				}
			}
			w.fill(250, 1200, 16, long("c"), long("n"))
			state := w.model.State(w.now)
			var text strings.Builder
			encoder := json.NewEncoder(&text)
			encoder.SetEscapeHTML(false)
			if err := encoder.Encode(state); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes: %d leases, %d clients, %d changes, %d stale writes", text.Len(), len(state.Leases), len(state.Clients), len(state.Timeline), len(state.StaleWrites))
			if text.Len() > MaxJSON {
				t.Errorf("the state has %d bytes, more than %d", text.Len(), MaxJSON)
			}
			if len(state.Leases) < 250 || len(state.Clients) < 200 || len(state.Timeline) < 50 || len(state.StaleWrites) < 30 {
				t.Errorf("it has %d leases, %d clients, %d changes and %d stale writes", len(state.Leases), len(state.Clients), len(state.Timeline), len(state.StaleWrites))
			}
			if got := len(state.Leases) + state.LeasesHidden; got != 1200 {
				t.Errorf("%d leases are shown or counted", got)
			}
			if got := len(state.Clients) + state.ClientsHidden; got != 250 {
				t.Errorf("%d clients are shown or counted", got)
			}
			if got := len(state.Leases[0].Waiting) + state.Leases[0].WaitingHidden; got < 15 {
				t.Errorf("%d waiting clients are shown or counted", got)
			}
		})
	}
}

func TestTheBytesOfARowAreAnUpperBound(t *testing.T) {
	const remote, big = "[2001:db8:0123:4567:89ab:cdef:0123:4567]:12345", 1<<31 - 1
	at, rank, offset := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC), 3, int64(-big)
	change := Change{
		Cause: CauseOverwritten, By: "x", ByUser: "x", ByRemote: remote, Forced: "x",
		Ended: at, Began: at, GapMillis: big, HeldMillis: big, Repeated: big,
	}
	waiter := Waiter{Client: "x", Since: at, LastAttempt: at, Attempts: big, Rank: &rank}
	lease := Lease{
		Since: at, Token: "1767225600000:12345:0123456789abcdef0123456789abcdef", TTLMillis: big, LeftMillis: big, Deadline: at, Renewals: big,
		LastRenewal: at, RenewEveryMillis: big, Missed: big, NoHolderSince: at, NoHolderMillis: big, Changes: big, WaitingHidden: big,
		LastChange: &change, Waiting: []Waiter{waiter, waiter},
	}
	client := Client{
		User: "x", Remote: remote, Since: at, Reason: ReasonSilent, LastSeen: at, Requests: big, ClockOffsetMillis: &offset,
		TakeOvers: big, Refused: big, StaleWrites: big, Dropped: big, ClockImplausible: true,
	}
	stale := StaleWrite{At: at, User: "x", Remote: remote, Verb: "KEYNOTIFY", Refusal: string(protocol.FencingTokenLower)}
	for _, row := range []struct {
		value any
		bytes int
	}{{&lease, lease.finish()}, {&change, change.finish()}, {&client, client.finish()}, {&stale, stale.finish()}} {
		if text, err := json.Marshal(row.value); err != nil || len(text) > row.bytes {
			t.Errorf("%d bytes instead of %d, %v: %s", len(text), row.bytes, err, text)
		}
	}
}

func TestAStateOfUsualNamesIsShownWhole(t *testing.T) {
	w := newWorld(t, Options{})
	w.fill(1000, 1000, 3,
		func(i int) string { return fmt.Sprintf("gateway-%04d.plant-7.example", i) },
		func(i int) string { return fmt.Sprintf("plant-7/line-%04d/press/active", i) })
	state := w.model.State(w.now)
	if len(state.Leases) != 1000 || len(state.Leases[0].Waiting) != 3 || len(state.Clients) != 1000 || len(state.Timeline) != 500 || len(state.StaleWrites) != 100 {
		t.Errorf("it has %d leases, %d clients, %d changes and %d stale writes", len(state.Leases), len(state.Clients), len(state.Timeline), len(state.StaleWrites))
	}
}
