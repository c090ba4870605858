package activity

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

func TestClients(t *testing.T) {
	w := newWorld(t, Options{})
	w.tell(Event{Kind: Connected, Client: "a", User: "ana", Remote: "10.0.0.1:5"})
	w.after(time.Second).tell(Event{Kind: Request, Client: "a", User: "ana", Remote: "10.0.0.1:5", Verb: statestore.VerbSet, Key: "file", Rank: -1,
		Outcome: statestore.Refused, Refusal: string(protocol.FencingTokenLower), HasClock: true, ClockOffset: -1500 * time.Millisecond})
	w.tell(Event{Kind: Dropped, Client: "a"})
	w.tell(Event{Kind: Dropped, Client: "unknown"})
	w.after(time.Second).tell(Event{Kind: Disconnected, Client: "a", Reason: "lost"})
	state := w.model.State(w.now)
	if len(state.Clients) != 1 {
		t.Fatalf("clients: %+v", state.Clients)
	}
	c := state.Clients[0]
	if c.ClockOffsetMillis == nil || *c.ClockOffsetMillis != -1500 || c.Connected || c.Reason != "lost" || c.User != "ana" ||
		c.Requests != 1 || c.Refused != 1 || c.StaleWrites != 1 || c.Dropped != 1 || !c.Since.Equal(noon.Add(2*time.Second)) {
		t.Errorf("the client is %+v", c)
	}
	if len(state.StaleWrites) != 1 || state.StaleWrites[0].Key != "file" || state.Totals.StaleWrites != 1 {
		t.Errorf("stale writes: %+v", state.StaleWrites)
	}
	if !slices.Equal(state.Totals.RequestsBy, []RequestCount{{"SET", "refused", 1}}) {
		t.Errorf("requests: %v", state.Totals.RequestsBy)
	}
}

// A client can send any clock. One that the store refuses must not hide how far the others are off.
func TestAClockThatIsNotPlausibleIsShownApart(t *testing.T) {
	w := newWorld(t, Options{})
	sends := func(client string, offset time.Duration, refusal protocol.Refusal) {
		e := Event{Kind: Request, Client: client, Verb: statestore.VerbGet, Key: "k", Rank: -1, Outcome: statestore.Missing, HasClock: true, ClockOffset: offset}
		if refusal != "" {
			e.Outcome, e.Refusal = statestore.Refused, string(refusal)
		}
		w.tell(e)
	}
	sends("right", 20*time.Millisecond, "")
	sends("behind", -90*time.Second, "")
	sends("stale", 2*time.Second, protocol.FencingTokenLower)
	sends("forged", 3*time.Second, "")
	sends("forged", 9e9*time.Second, protocol.TimestampTooFarAhead)
	sends("ahead", 2*time.Minute, protocol.TimestampTooFarAhead)
	sends("ancient", -50*365*24*time.Hour, "")
	sends("mended", 2*time.Minute, protocol.TimestampTooFarAhead)
	sends("mended", time.Millisecond, "")
	state, got := w.model.State(w.now), ""
	for _, c := range state.Clients {
		got += c.Client
		if c.ClockOffsetMillis != nil {
			got += fmt.Sprint(" ", *c.ClockOffsetMillis)
		}
		if c.ClockImplausible {
			got += " implausible"
		}
		got += "; "
	}
	want := "ahead implausible; ancient implausible; behind -90000; forged 3000 implausible; mended 1; right 20; stale 2000; "
	if got != want || state.Totals.ClocksOff != 2 || state.Totals.ClocksImplausible != 3 {
		t.Errorf("got %s%d off, %d implausible; want %s2 off, 3 implausible", got, state.Totals.ClocksOff, state.Totals.ClocksImplausible, want)
	}
}

// A client that was wrong once, and has left or sends no clock any more, is not an alarm for ever.
func TestAClockCountsForAWhileOnly(t *testing.T) {
	w := newWorld(t, Options{})
	get := func(client string, offset time.Duration) {
		w.tell(Event{Kind: Request, Client: client, Verb: statestore.VerbGet, Key: "k", Rank: -1, Outcome: statestore.Missing, HasClock: offset != 0, ClockOffset: offset})
	}
	counted := func() string {
		state := w.model.State(w.now)
		known, implausible := 0, 0
		for _, c := range state.Clients {
			if c.ClockOffsetMillis != nil {
				known++
			}
			if c.ClockImplausible {
				implausible++
			}
		}
		return fmt.Sprintf("%d off, %d implausible; shown %d and %d", state.Totals.ClocksOff, state.Totals.ClocksImplausible, known, implausible)
	}
	for _, client := range []string{"doctor", "silent", "renews"} {
		get(client, time.Minute)
		get(client, 48*time.Hour)
	}
	get("off", 3*time.Second)
	w.tell(Event{Kind: Disconnected, Client: "doctor", Reason: ReasonLeft})
	if got, want := counted(), "1 off, 3 implausible; shown 4 and 3"; got != want {
		t.Errorf("at once: %s, want %s", got, want)
	}
	w.after(clockFor)
	get("silent", 0) // it sends requests without a clock
	get("renews", 48*time.Hour)
	w.after(time.Millisecond)
	if got, want := counted(), "0 off, 1 implausible; shown 0 and 1"; got != want {
		t.Errorf("later: %s, want %s", got, want)
	}
}

func TestAClientIDThatIsTakenOverAndBackFlaps(t *testing.T) {
	w := newWorld(t, Options{})
	taken := func() { w.tell(Event{Kind: TakenOver, Client: "a", Remote: "10.0.0.2:1", Reason: "10.0.0.1:1"}) }
	flaps := func() bool {
		state := w.model.State(w.now)
		return state.Clients[0].Flapping && state.Totals.Flapping == 1
	}
	taken()
	w.after(time.Second)
	taken()
	if flaps() {
		t.Error("one that took its own connection over twice flaps")
	}
	w.after(time.Second)
	if taken(); !flaps() {
		t.Error("taken over, back and again: it does not flap")
	}
	if w.after(10 * time.Minute); flaps() || w.model.State(w.now).Clients[0].TakeOvers != 3 {
		t.Error("it flaps though nothing happened for ten minutes")
	}
}

// A warning for each take-over would fill the log: two programs with one client id end each other's
// connection as fast as they can connect.
func TestWarningsAboutAFlappingClientIDComeAtGrowingIntervals(t *testing.T) {
	takeOvers, now := NewTakeOvers(2), noon
	var warned []time.Duration
	for range 4 * 3600 {
		if _, warn := takeOvers.Note("", "a", now); warn {
			warned = append(warned, now.Sub(noon))
		}
		now = now.Add(time.Second)
	}
	s := time.Second
	want := []time.Duration{2 * s, 62 * s, 182 * s, 422 * s, 902 * s, 1862 * s, 3782 * s, 7382 * s, 10982 * s}
	if !slices.Equal(warned, want) {
		t.Errorf("warnings after %v, want %v", warned, want)
	}
	takeOvers.Note("", "b", now)
	takeOvers.Note("", "c", now)
	if len(takeOvers.byClient) != 2 || takeOvers.byClient["a"] != nil {
		t.Errorf("it remembers %d client ids", len(takeOvers.byClient))
	}
}

// A user with many client ids must not hide that one of another user flaps.
func TestAFloodOfTakeOversHidesNoClientIDThatFlaps(t *testing.T) {
	takeOvers, warned := NewTakeOvers(10), false
	for round := range 3 {
		_, warned = takeOvers.Note("ana", "a", noon)
		for i := range 100 {
			takeOvers.Note("mallory", fmt.Sprint(round, "-", i), noon)
		}
		if len(takeOvers.byClient) > 10 || takeOvers.shares.count != len(takeOvers.byClient) {
			t.Fatalf("it remembers %d client ids", len(takeOvers.byClient))
		}
	}
	if !warned || takeOvers.flapping(noon) != 1 {
		t.Errorf("warned: %t; %d flap", warned, takeOvers.flapping(noon))
	}
}
