package activity

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const ttl = 3 * time.Second

// world makes events in virtual time, as a store would.
type world struct {
	t       *testing.T
	model   *Model
	now     time.Time
	version int64
	setTo   map[string]hlc.Timestamp // the latest versions
	exists  map[string]bool
}

func newWorld(t *testing.T, options Options) *world {
	return &world{t: t, model: New(options), now: noon, setTo: make(map[string]hlc.Timestamp), exists: make(map[string]bool)}
}

func (w *world) after(d time.Duration) *world {
	w.now = w.now.Add(d)
	return w
}

func (w *world) tell(e Event) {
	e.At = w.now
	switch {
	case e.Kind == Expired || e.Outcome == statestore.Deleted:
		delete(w.exists, e.Key)
	case e.Kind == Request && e.Verb == statestore.VerbSet && e.Outcome == statestore.OK:
		e.Created = !w.exists[e.Key]
		w.exists[e.Key] = true
	}
	w.model.Observe(e)
}

// set is a SET NEX PX that was applied, with the value "<client>:1".
func (w *world) set(client, key string) Event {
	w.version++
	e := Event{
		Kind: Request, Client: client, User: "user of " + client, Remote: "10.0.0.1:1", Verb: statestore.VerbSet, Key: key,
		Condition: statestore.IfMissingOrEqual, Lifetime: ttl, Holder: client, Rank: -1,
		Outcome: statestore.OK, Version: hlc.Timestamp{Wall: w.version, Node: "s"},
	}
	w.setTo[key] = e.Version
	w.tell(e)
	return e
}

// fails is a SET NEX PX for a key that another client has.
func (w *world) fails(client, key string) {
	w.tell(Event{
		Kind: Request, Client: client, Verb: statestore.VerbSet, Key: key, Condition: statestore.IfMissingOrEqual,
		Lifetime: ttl, Holder: client, Rank: -1, Outcome: statestore.ConditionFailed, Version: cmpVersion(w.setTo[key]),
	})
}

func cmpVersion(v hlc.Timestamp) hlc.Timestamp {
	if v.IsZero() {
		return hlc.Timestamp{Wall: 1, Node: "earlier"}
	}
	return v
}

func (w *world) deletes(e Event) {
	e.Kind, e.Outcome, e.Version, e.Rank = Request, statestore.Deleted, w.setTo[e.Key], -1
	w.tell(e)
}

func (w *world) releases(client, key string) {
	w.deletes(Event{Client: client, Verb: statestore.VerbVDel, Key: key, Holder: client})
}

func (w *world) lease(name string) Lease {
	w.t.Helper()
	for _, l := range w.model.State(w.now).Leases {
		if l.Name == name {
			return l
		}
	}
	w.t.Fatalf("there is no lease %q", name)
	return Lease{}
}

// renews renews a lease n times, once in every interval.
func (w *world) renews(n int, every time.Duration, client, key string) {
	for range n {
		w.after(every).set(client, key)
	}
}

func TestALeaseShowsItsHolderAndItsRenewals(t *testing.T) {
	w := newWorld(t, Options{})
	first := w.set("a", "k")
	w.renews(3, time.Second, "a", "k")
	w.after(250 * time.Millisecond)
	l := w.lease("k")
	want := Lease{
		Name: "k", Held: true, Holder: "a", Client: "a", Since: noon, Token: first.Version.String(), Known: true,
		TTLMillis: 3000, LeftMillis: 2750, Deadline: noon.Add(6 * time.Second), Renewals: 3,
		LastRenewal: noon.Add(3 * time.Second), RenewEveryMillis: 1000,
	}
	last := l.LastChange
	l.LastChange, l.Waiting = nil, nil
	if fmt.Sprint(l) != fmt.Sprint(want) {
		t.Errorf("got\n%+v, want\n%+v", l, want)
	}
	if last == nil || last.Cause != CauseAcquired || last.To != "a" || !last.Began.Equal(noon) {
		t.Errorf("the last change is %+v", last)
	}
}

// NEX with the value of another holder takes the lease from it, whatever the value names.
func TestASwapOfTheValueIsAnotherTenure(t *testing.T) {
	for _, holder := range []string{"a", ""} { // the value need not name its client
		w := newWorld(t, Options{})
		first := w.set("a", "k")
		swap := first
		swap.Client, swap.Holder, swap.Swap, swap.Version = "b", holder, true, hlc.Timestamp{Wall: first.Version.Wall + 1, Node: "s"}
		w.tell(swap)
		if l := w.lease("k"); l.Client != "b" || l.Token != swap.Version.String() || l.Renewals != 0 {
			t.Errorf("with the holder %q: %+v", holder, l)
		}
	}
}

// The first request of a client cannot name the store, so package lease sends a second one, whose version is
// the token of the tenure.
func TestTheTokenOfALeaseIsTheVersionOfItsBoundRequest(t *testing.T) {
	w := newWorld(t, Options{})
	set := func(bound bool) string {
		w.version++
		e := Event{
			Kind: Request, Client: "a", Verb: statestore.VerbSet, Key: "k", Condition: statestore.IfMissingOrEqual, Lifetime: ttl, Holder: "a",
			Rank: -1, Outcome: statestore.OK, Version: hlc.Timestamp{Wall: w.version, Node: "s"}, Bound: bound,
		}
		w.tell(e)
		return e.Version.String()
	}
	want := func(token string, renewals uint64) {
		t.Helper()
		if l := w.lease("k"); l.Token != token || l.Renewals != renewals || !l.Since.Equal(noon) {
			t.Errorf("token %s and %d renewals since %v, want %s and %d", l.Token, l.Renewals, l.Since, token, renewals)
		}
	}
	want(set(false), 0)
	token := set(true)
	want(token, 0)
	w.after(time.Second)
	set(true)
	want(token, 1)
	w.tell(Event{Kind: Expired, Key: "k"})
	w.now = noon
	token = set(true)
	set(true)
	want(token, 1)
	w.tell(Event{Kind: Expired, Key: "k"})
	token = set(false) // of a client that does not know bound requests
	set(false)
	want(token, 1)
}

// Each way in which a lease can end has its own cause.
func TestTheCauseOfAnEnd(t *testing.T) {
	for _, test := range []struct {
		name  string
		end   func(w *world)
		cause Cause
		by    string
	}{
		{"released", func(w *world) { w.releases("a", "k") }, CauseReleased, "a"},
		{"expired", func(w *world) { w.tell(Event{Kind: Expired, Key: "k"}) }, CauseExpired, ""},
		{"deleted", func(w *world) { w.deletes(Event{Client: "a", Verb: statestore.VerbDel, Key: "k"}) }, CauseDeleted, "a"},
		{"will", func(w *world) {
			w.deletes(Event{Client: "a", Verb: statestore.VerbVDel, Key: "k", Holder: "a", Will: true})
		}, CauseWill, "a"},
		{"deleted by another", func(w *world) { w.deletes(Event{Client: "x", Verb: statestore.VerbDel, Key: "k"}) }, CauseForced, "x"},
		{"the value deleted by another", func(w *world) {
			w.deletes(Event{Client: "x", Verb: statestore.VerbVDel, Key: "k", Holder: "a"})
		}, CauseForced, "x"},
		{"says that it is forced", func(w *world) {
			w.deletes(Event{Client: "a", Verb: statestore.VerbVDel, Key: "k", Holder: "a", Forced: "stuck"})
		}, CauseForced, "a"},
		{"overwritten by another", func(w *world) {
			w.version++
			w.tell(Event{Kind: Request, Client: "b", Verb: statestore.VerbSet, Key: "k", Lifetime: ttl, Holder: "b",
				Rank: -1, Outcome: statestore.OK, Version: hlc.Timestamp{Wall: w.version, Node: "s"}})
		}, CauseForced, "b"},
		{"set without expiry", func(w *world) {
			w.version++
			w.tell(Event{Kind: Request, Client: "a", Verb: statestore.VerbSet, Key: "k", Holder: "a",
				Rank: -1, Outcome: statestore.OK, Version: hlc.Timestamp{Wall: w.version, Node: "s"}})
		}, CauseOverwritten, "a"},
		{"an event was lost", func(w *world) { w.set("b", "k") }, CauseUnknown, "b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set("a", "k")
			w.after(time.Second)
			test.end(w)
			timeline := w.model.State(w.now).Timeline
			ended := timeline[len(timeline)-2] // the acquisition is the oldest
			if ended.Cause != test.cause || ended.By != test.by || ended.From != "a" || ended.HeldMillis != 1000 {
				t.Errorf("got %+v, want %s by %q", ended, test.cause, test.by)
			}
			if got := w.model.State(w.now).Totals.EndsBy[test.cause]; got != 1 {
				t.Errorf("%d ends count as %s", got, test.cause)
			}
		})
	}
}

func TestAGapWithoutHolderGrowsUntilTheNextOneBegins(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a", "k")
	w.after(ttl).tell(Event{Kind: Expired, Key: "k"})
	w.after(4 * time.Second)
	l := w.lease("k")
	if l.Held || l.NoHolderMillis != 4000 || !l.NoHolderSince.Equal(noon.Add(ttl)) || l.Holder != "a" {
		t.Errorf("without a holder: %+v", l)
	}
	if h := l.LastChange; h.GapMillis != 4000 || h.To != "" {
		t.Errorf("the change that is not over: %+v", h)
	}
	w.after(time.Second).set("b", "k")
	w.after(time.Hour)
	state := w.model.State(w.now)
	if h := state.Timeline[0]; h.From != "a" || h.To != "b" || h.GapMillis != 5000 || h.Cause != CauseExpired {
		t.Errorf("the change: %+v", h)
	}
	if state.Totals.Acquired != 2 || len(state.Timeline) != 2 {
		t.Errorf("%d acquisitions, %d entries", state.Totals.Acquired, len(state.Timeline))
	}
}

// The end of a lease is no change of the holder: the same client may have the lease again.
func TestAChangeOfTheHolderIsCountedWhenAnotherOneBegins(t *testing.T) {
	w := newWorld(t, Options{})
	for _, step := range []struct {
		what    string
		do      func()
		changes uint64
	}{
		{"acquired", func() { w.set("a", "k") }, 0},
		{"expired", func() { w.after(ttl).tell(Event{Kind: Expired, Key: "k"}) }, 0},
		{"acquired again", func() { w.set("a", "k") }, 0},
		{"released", func() { w.releases("a", "k") }, 0},
		{"acquired by another", func() { w.set("b", "k") }, 1},
		{"taken", func() { w.set("c", "k") }, 2},
	} {
		step.do()
		if got := w.lease("k").Changes; got != step.changes {
			t.Errorf("%s: %d changes of the holder, want %d", step.what, got, step.changes)
		}
	}
}

func TestMissedRenewals(t *testing.T) {
	for _, test := range []struct {
		name   string
		gaps   []time.Duration
		missed uint64
	}{
		{"even", []time.Duration{1000, 1000, 1000, 1000}, 0},
		{"a little jitter", []time.Duration{1000, 1100, 900, 1200, 950}, 0},
		{"one missing", []time.Duration{1000, 1000, 2000, 1000}, 1},
		{"two missing", []time.Duration{1000, 1000, 3000, 1000}, 2},
		{"a retry between", []time.Duration{1000, 100, 900, 1000}, 0},
		{"a new pattern counts for a while only", []time.Duration{1000, 1000, 2000, 2000, 2000, 2000, 2000, 2000}, 3},
		{"a slower pattern that comes again", []time.Duration{1000, 1000, 2000, 2000, 2000, 1000, 2000}, 3},
		{"two requests at once, and a first renewal after half of the interval", []time.Duration{2, 510, 1000, 950, 1000}, 0},
		{"one missing after that", []time.Duration{2, 510, 1000, 950, 2000, 1000}, 1},
		{"a burst", []time.Duration{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1000, 1000, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1000}, 0},
		{"once", []time.Duration{2500, 1000, 2500}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set("a", "k")
			for _, gap := range test.gaps {
				w.after(gap*time.Millisecond).set("a", "k")
			}
			state := w.model.State(w.now)
			if got := w.lease("k").Missed; got != test.missed || state.Totals.Missed != test.missed {
				t.Errorf("%d missed, %d in all, want %d", got, state.Totals.Missed, test.missed)
			}
		})
	}
}

func TestALeaseIsLateBeforeItExpires(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a", "k")
	w.renews(3, time.Second, "a", "k")
	if w.after(1200 * time.Millisecond); w.lease("k").Late {
		t.Error("late after 1.2 s, though it renews each second")
	}
	if w.after(500 * time.Millisecond); !w.lease("k").Late {
		t.Error("not late after 1.7 s")
	}
	w.after(1300 * time.Millisecond).tell(Event{Kind: Expired, Key: "k"})
	if l := w.lease("k"); l.Missed != 3 || l.Late {
		t.Errorf("expired after three missed renewals: %+v", l)
	}
}

// A request that is delivered twice is reported twice, with the same version.
func TestASecondDeliveryChangesNothing(t *testing.T) {
	w := newWorld(t, Options{})
	first := w.set("a", "k")
	released := Event{Kind: Request, Client: "a", Verb: statestore.VerbVDel, Key: "k", Holder: "a", Rank: -1,
		Outcome: statestore.Deleted, Version: first.Version}
	w.tell(released)
	w.after(time.Second).tell(first)
	if w.lease("k").Held {
		t.Error("a second delivery of the SET makes the lease held again")
	}
	w.set("b", "k")
	w.tell(released)
	if l := w.lease("k"); !l.Held || l.Holder != "b" {
		t.Errorf("a second delivery of the release ends the next lease: %+v", l)
	}
}

func TestTheClientsThatWaitForALease(t *testing.T) {
	w := newWorld(t, Options{})
	notify := func(client, key string, stop bool) {
		w.tell(Event{Kind: Request, Client: client, Verb: statestore.VerbKeyNotify, Key: key, Stop: stop, Rank: -1, Outcome: statestore.OK})
	}
	waiting := func() string {
		var all []string
		for _, x := range w.lease("k").Waiting {
			text := fmt.Sprint(x.Client, " ", x.Attempts)
			if x.Watching {
				text += " watching"
			}
			if x.Bids {
				text += fmt.Sprint(" rank ", *x.Rank)
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	want := func(when, want string) {
		t.Helper()
		if got := waiting(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	w.tell(Event{Kind: Connected, Client: "b"})
	notify("o", "k", false) // before the lease exists
	w.after(time.Second).set("a", "k")
	notify("a", "k", false)
	want("an observer", "o 0 watching")
	w.after(time.Second).fails("b", "k")
	notify("b", "k", false)
	w.after(time.Second).fails("b", "k")
	w.after(time.Second).fails("c", "k")
	bid := Event{Kind: Request, Client: "b", Verb: statestore.VerbSet, Key: "k" + protocol.FailBackSuffix,
		Condition: statestore.IfMissingOrEqual, Lifetime: time.Minute, Holder: "b", Rank: 0, Outcome: statestore.OK, Version: hlc.Timestamp{Wall: 99, Node: "s"}}
	w.tell(bid)
	want("a bid", "b 2 watching rank 0, c 1, o 0 watching")
	w.after(90*time.Second).set("a", "k")
	want("long after", "b 2 watching, o 0 watching")
	w.fails("e", "k")
	want("another one tries", "b 2 watching, e 1, o 0 watching")
	w.tell(Event{Kind: Disconnected, Client: "e"})
	want("it is gone", "b 2 watching, o 0 watching")
	w.tell(Event{Kind: Disconnected, Client: "b"})
	notify("o", "k", true)
	notify("p", "k", false)
	w.tell(Event{Kind: Unwatched, Client: "p", Key: "k"})
	w.tell(Event{Kind: Unwatched, Client: "unknown", Key: "k"})
	want("the end of the watches", "")
	w.fails("c", "k")
	w.releases("a", "k")
	w.set("c", "k")
	want("the waiting client has it", "a 0 watching")
	for i := range 1000 {
		w.fails(fmt.Sprint("d", i), "k")
	}
	if l := w.lease("k"); len(l.Waiting) != shownWaiters || l.WaitingHidden == 0 || len(w.model.names["k"].value.waiters) > waitersOf {
		t.Errorf("of a thousand waiters %d are shown, %d hidden", len(l.Waiting), l.WaitingHidden)
	}
	if w.model.names["k"+protocol.FailBackSuffix] != nil {
		t.Error("the bid is remembered as a name")
	}
}

// A bid ends with its key, however that ends.
func TestTheEndOfABid(t *testing.T) {
	key := "k" + protocol.FailBackSuffix
	for name, end := range map[string]func(w *world){
		"deleted": func(w *world) {
			w.tell(Event{Kind: Request, Client: "b", Verb: statestore.VerbVDel, Key: key, Rank: 0, Outcome: statestore.Deleted})
		},
		"deleted without a value": func(w *world) {
			w.tell(Event{Kind: Request, Client: "b", Verb: statestore.VerbDel, Key: key, Rank: -1, Outcome: statestore.Deleted})
		},
		"expired":            func(w *world) { w.tell(Event{Kind: Expired, Key: key}) },
		"its expiry is lost": func(w *world) { w.after(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set("a", "k")
			w.tell(Event{Kind: Request, Client: "b", Verb: statestore.VerbSet, Key: key, Lifetime: time.Second, Rank: 0, Outcome: statestore.OK, Version: hlc.Timestamp{Wall: 9, Node: "s"}})
			if l := w.lease("k"); len(l.Waiting) != 1 || !l.Waiting[0].Bids {
				t.Fatalf("before: %+v", l.Waiting)
			}
			end(w)
			if l := w.lease("k"); len(l.Waiting) != 0 {
				t.Errorf("after: %+v", l.Waiting)
			}
		})
	}
}

// The store began with data, so what looks like an acquisition is a renewal.
func TestLeasesOfAnEarlierStoreAreNotAcquiredAgain(t *testing.T) {
	w := newWorld(t, Options{})
	w.tell(Event{Kind: Started, Continues: true})
	w.exists["old"], w.exists["other"] = true, true
	w.set("a", "old")
	if l := w.lease("old"); l.Known || l.Token != "" || l.LastChange != nil || !l.Held {
		t.Errorf("a lease that the model has not seen begin: %+v", l)
	}
	w.fails("b", "other")
	if l := w.lease("other"); !l.Held || l.Holder != "" || len(l.Waiting) != 1 {
		t.Errorf("a lease of which only a refusal is known: %+v", l)
	}
	w.after(time.Second).set("c", "other")
	if l := w.lease("other"); l.Known || l.Holder != "c" || l.Since != w.now {
		t.Errorf("its holder renews: %+v", l)
	}
	if w.set("d", "new"); !w.lease("new").Known {
		t.Errorf("a lease that begins now: %+v", w.lease("new"))
	}
}

// The events of a lease may be lost, or a model may have no room for it. What is seen of it afterwards says
// nothing untrue, and nothing about other leases.
func TestALeaseThatWasForgottenIsNotAcquiredAgain(t *testing.T) {
	w := newWorld(t, Options{Names: 10})
	for i := range 11 {
		w.set("mallory", fmt.Sprint("m", i))
	}
	w.set("bob", "new")
	if l := w.lease("new"); !l.Known || l.Token == "" || l.LastChange == nil {
		t.Errorf("a lease that begins after the model has forgotten the leases of another client: %+v", l)
	}
	before := w.model.State(w.now)
	w.after(time.Second).set("mallory", "m0")
	if l := w.lease("m0"); before.LeasesForgotten == 0 || l.Known || l.Token != "" || l.LastChange != nil {
		t.Errorf("%d forgotten; one of them is renewed: %+v", before.LeasesForgotten, l)
	}
	after := w.model.State(w.now)
	if after.Totals.Acquired != before.Totals.Acquired || after.Totals.Renewed != before.Totals.Renewed+1 {
		t.Errorf("%d acquisitions and %d renewals, before %d and %d",
			after.Totals.Acquired, after.Totals.Renewed, before.Totals.Acquired, before.Totals.Renewed)
	}
}

// An expiry that was not reported ends the time of a holder all the same, and is not thousands of renewals
// that did not come.
func TestAHolderThatComesBackAfterALostExpiryHasANewLease(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a", "k")
	w.renews(5, 200*time.Millisecond, "a", "k")
	w.exists["k"] = false
	again := w.after(50*time.Minute).set("a", "k")
	l, totals := w.lease("k"), w.model.State(w.now).Totals
	if l.Token != again.Version.String() || l.Renewals != 0 || totals.Acquired != 2 || totals.EndsBy[CauseUnknown] != 1 || totals.Missed != 0 {
		t.Errorf("%+v, %+v", l, totals)
	}
	w.renews(5, 200*time.Millisecond, "a", "k")
	w.after(50*time.Minute).set("a", "k") // the events of its renewals were lost
	most := uint64(ttl / (200 * time.Millisecond))
	if missed := w.lease("k").Missed; missed > most {
		t.Errorf("%d renewals are missed in one lifetime", missed)
	}
	w.renews(5, 200*time.Millisecond, "a", "k")
	before := w.model.State(w.now).Totals.Missed
	w.after(50 * time.Minute).tell(Event{Kind: Expired, Key: "k"})
	if missed := w.model.State(w.now).Totals.Missed - before; missed == 0 || missed > most {
		t.Errorf("%d renewals are missed before an expiry", missed)
	}
}

// A spare that takes the place of another store begins empty.
func TestAStoreThatBeginsEmptyHasNoLeases(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a", "k")
	w.fails("b", "k")
	w.tell(Event{Kind: Started})
	checkBounds(t, w.model)
	if state := w.model.State(w.now); len(state.Leases) != 0 || state.LeasesForgotten != 0 {
		t.Errorf("%+v", state.Leases)
	}
}

// A lock around a job that runs each minute must not hide the failovers of other names.
func TestReleasesByOneHolderAreOneEntryOfTheTimeline(t *testing.T) {
	w := newWorld(t, Options{Timeline: 10})
	w.set("a", "leader")
	w.after(ttl).tell(Event{Kind: Expired, Key: "leader"})
	w.set("b", "leader")
	for range 100 {
		w.after(time.Minute).set("cron", "job")
		w.after(time.Second).releases("cron", "job")
	}
	timeline := w.model.State(w.now).Timeline
	if len(timeline) != 4 || timeline[0].Name != "job" || timeline[0].Repeated != 99 || !timeline[0].Ended.Equal(w.now) || timeline[2].Cause != CauseExpired {
		t.Errorf("%+v", timeline)
	}
	w.after(time.Minute).set("other", "job")
	w.releases("other", "job")
	if timeline := w.model.State(w.now).Timeline; len(timeline) != 5 || timeline[1].To != "other" || timeline[0].From != "other" {
		t.Errorf("after another client had it: %+v", timeline)
	}
	if got := w.model.State(w.now).Totals.EndsBy[CauseReleased]; got != 101 {
		t.Errorf("%d releases are counted", got)
	}
}

func TestAnExpiryThatWasNotReportedShowsAfterAWhile(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a", "k")
	w.after(ttl + overdue + time.Second).tell(Event{Kind: Refused, Lost: 7})
	l, state := w.lease("k"), w.model.State(w.now)
	if l.Held || l.NoHolderMillis != 11_000 || state.Totals.LostEvents != 7 || state.Totals.Held != 0 || state.Totals.Free != 1 {
		t.Errorf("%+v, %+v", l, state.Totals)
	}
	if state := w.model.State(w.after(2 * time.Hour).now); len(state.Leases) != 0 {
		t.Errorf("hours later: %+v", state.Leases)
	}
}

func TestAFreeNameIsForgottenUnlessAClientWaits(t *testing.T) {
	w := newWorld(t, Options{FreeFor: time.Minute})
	for _, key := range []string{"wanted", "done"} {
		w.set("a", key)
		w.releases("a", key)
	}
	w.tell(Event{Kind: Request, Client: "b", Verb: statestore.VerbKeyNotify, Key: "wanted", Rank: -1, Outcome: statestore.OK})
	if state := w.model.State(w.after(2 * time.Minute).now); len(state.Leases) != 1 || state.Leases[0].Name != "wanted" {
		t.Errorf("%+v", state.Leases)
	}
}

func TestTextsOfClientsAreMadePrintable(t *testing.T) {
	w := newWorld(t, Options{})
	w.set("a\x00<script>", "k\n\xff")
	encoded, err := json.Marshal(w.model.State(w.now))
	if err != nil || strings.ContainsAny(string(encoded), "\x00\n") || strings.Contains(string(encoded), "\xff") || !strings.Contains(string(encoded), `k\\n\\xff`) {
		t.Errorf("%v: %q", err, encoded)
	}
}

func TestALongKeyIsCutAndStaysDistinct(t *testing.T) {
	long := strings.Repeat("k", 10_000)
	a, b := CutKey(long+"a"), CutKey(long+"b")
	if len(a) != MaxKey || a == b || a[:100] != long[:100] || CutKey("short") != "short" || len(CutKey(long[:MaxKey])) != MaxKey {
		t.Errorf("%d bytes %q, %q", len(a), a, b)
	}
	huge := strings.Repeat("k", 1<<20)
	if a, b, c := CutKey("a"+huge), CutKey("b"+huge), CutKey(huge); a == b || a == c || b == c || CutKey(huge+"a") == CutKey(huge+"b") {
		t.Errorf("two huge keys become one: %q, %q, %q", a, b, c)
	}
	if inside := huge[:1<<19] + "x" + huge[1<<19+1:]; CutKey(inside) != CutKey(huge) {
		t.Error("a whole mebibyte is hashed, with the lock of the store held")
	}
	if looks := CutKey(huge); CutKey(looks) == looks || CutKey(looks) == CutKey(CutKey(looks)) {
		t.Errorf("a short key is the same one as a long key: %q", looks)
	}
	if CutText(long) != long[:MaxText] {
		t.Error("a long text is not cut")
	}
}
