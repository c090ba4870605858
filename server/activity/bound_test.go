package activity

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/statestore"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

// full returns a state with rows whose texts name returns.
func full(leases, clients, changes, stale, waiting int, name func(kind string, i int) string) State {
	s := NewState()
	change := func(i int) statestore.HolderChange {
		return statestore.HolderChange{
			Name: name("n", i), Cause: statestore.CauseForced, From: name("c", i), To: name("c", i+1), By: name("c", i+1), ByUser: name("u", i),
			Forced: name("f", i), Ended: noon, Began: noon.Add(time.Duration(i)),
		}
	}
	for i := range leases {
		last := change(i)
		l := statestore.Lease{Name: name("n", i), Held: i%2 > 0, Holder: name("c", i), Client: name("c", i), LastChange: &last}
		for k := range waiting {
			l.Waiting = append(l.Waiting, statestore.Waiter{Client: name("c", k)})
		}
		s.Leases = append(s.Leases, l)
	}
	for i := range clients {
		s.Clients = append(s.Clients, Client{Client: name("c", i), User: name("u", i)})
	}
	for i := range changes {
		s.Timeline = append(s.Timeline, change(i))
	}
	for i := range stale {
		s.StaleWrites = append(s.StaleWrites, StaleWrite{At: noon, Key: name("n", i), Client: name("c", i), User: name("u", i), Verb: "SET"})
	}
	return s
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
			state := full(1000, 1000, 500, 100, 16, func(kind string, i int) string {
				number := fmt.Sprintf("%s%05d", kind, i)
				return strings.Repeat(test.text, (shown.Max-len(number))/len(test.text)) + number
			})
			state.Bound()
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
			for what, got := range map[string][2]int{
				"leases":          {len(state.Leases) + state.LeasesHidden, 1000},
				"clients":         {len(state.Clients) + state.ClientsHidden, 1000},
				"changes":         {len(state.Timeline) + state.TimelineHidden, 500},
				"waiting clients": {len(state.Leases[0].Waiting) + state.Leases[0].WaitingHidden, 16},
			} {
				if got[0] != got[1] {
					t.Errorf("%d %s are shown or counted; want %d", got[0], what, got[1])
				}
			}
		})
	}
}

func TestTheBytesOfARowAreAnUpperBound(t *testing.T) {
	const remote, big = "[2001:db8:0123:4567:89ab:cdef:0123:4567]:12345", 1<<31 - 1
	rank, offset := 3, int64(-big)
	change := statestore.HolderChange{
		Cause: statestore.CauseOverwritten, By: "x", ByUser: "x", Forced: "x",
		Ended: noon, Began: noon, Disconnected: noon, GapMillis: big, HeldMillis: big, Repeated: big,
	}
	waiter := statestore.Waiter{Client: "x", Rank: &rank}
	lease := statestore.Lease{
		Since: noon, Token: "1767225600000:12345:0123456789abcdef0123456789abcdef", TTLMillis: big, LeftMillis: big, Deadline: noon, Renewals: big,
		LastRenewal: noon, NoHolderSince: noon, NoHolderMillis: big, Changes: big, WaitingHidden: big,
		LastChange: &change, Waiting: []statestore.Waiter{waiter, waiter},
	}
	client := Client{
		User: "x", Remote: remote, Since: noon, Reason: ReasonSilent, LastSeen: noon, Requests: big, ClockOffsetMillis: &offset,
		TakeOvers: big, Refused: big, StaleWrites: big, Dropped: big, ClockImplausible: true,
	}
	stale := StaleWrite{At: noon, User: "x", Remote: remote, Verb: "KEYNOTIFY", Refusal: string(protocol.FencingTokenLower)}
	for _, row := range []struct {
		value any
		bytes int
	}{{&lease, boundLease(&lease)}, {&change, boundChange(&change)}, {&client, clientBytes}, {&stale, staleBytes}} {
		if text, err := json.Marshal(row.value); err != nil || len(text) > row.bytes {
			t.Errorf("%d bytes instead of %d, %v: %s", len(text), row.bytes, err, text)
		}
	}
}

func TestAStateOfUsualNamesIsShownWholeAndInOrder(t *testing.T) {
	s := full(1000, 1000, 500, 100, 3, func(kind string, i int) string { return fmt.Sprintf("plant-7/%s-%04d.plant-7.example", kind, 9999-i) })
	s.Bound()
	if len(s.Leases) != 1000 || len(s.Leases[0].Waiting) != 3 || len(s.Clients) != 1000 || len(s.Timeline) != 500 || len(s.StaleWrites) != 100 {
		t.Errorf("it has %d leases, %d clients, %d changes and %d stale writes", len(s.Leases), len(s.Clients), len(s.Timeline), len(s.StaleWrites))
	}
	if a, b := s.Leases[0], s.Leases[500]; a.Held || a.Turn != 998 || !b.Held || b.Turn != 999 || s.Clients[0].Client > s.Clients[1].Client {
		t.Errorf("the first leases are %+v and %+v", a, b)
	}
	if !s.Timeline[0].Began.After(s.Timeline[1].Began) {
		t.Error("the latest change is not the first one")
	}
}
