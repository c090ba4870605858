package activity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

func TestTheStateIsSortedAndBounded(t *testing.T) {
	w := newWorld(t, Options{Shown: 3})
	for _, key := range []string{"d", "b", "c", "a", "e"} {
		w.set("c-"+key, key)
	}
	shown := func() (names []string) {
		for _, l := range w.model.State(w.now).Leases {
			names = append(names, l.Name)
		}
		return names
	}
	w.tell(Event{Kind: Expired, Key: "d"})
	state, names := w.model.State(w.now), shown()
	if want := []string{"d", "b", "c"}; !slices.Equal(names, want) || state.LeasesHidden != 2 || state.ClientsHidden != 2 {
		t.Errorf("shown are %q, hidden %d and %d", names, state.LeasesHidden, state.ClientsHidden)
	}
	w.releases("c-b", "b")
	if names := shown(); !slices.Equal(names, []string{"d", "a", "c"}) {
		t.Errorf("shown are %q, though b was released and no client waits for it", names)
	}
	w.fails("x", "b")
	w.tell(Event{Kind: Request, Client: "x", Verb: statestore.VerbKeyNotify, Key: "b", Rank: -1, Outcome: statestore.OK})
	if names := shown(); !slices.Contains(names, "b") {
		t.Errorf("shown are %q, though a client waits for b", names)
	}
}

// Whatever the events are, the model stays within its bounds and agrees with itself.
func TestTheModelIsBounded(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		options := Options{Names: 1 + random.IntN(50), Clients: 1 + random.IntN(50), Timeline: 1 + random.IntN(20), StaleWrites: 1 + random.IntN(5), Shown: 1 + random.IntN(30), FreeFor: time.Minute}
		m, now := New(options), noon
		for step := range 5000 {
			now = now.Add(time.Duration(random.IntN(2000)) * time.Millisecond)
			key := fmt.Sprint("k", random.IntN(100))
			if random.IntN(5) == 0 {
				key += protocol.FailBackSuffix
			}
			client := fmt.Sprint("c", random.IntN(100))
			e := Event{
				Kind: Kind(random.IntN(len(kindNames))), At: now, Client: client, Key: key,
				Verb: statestore.Verb(random.IntN(verbs + 1)), Outcome: statestore.Outcome(random.IntN(outcomes + 1)),
				Condition: statestore.Condition(random.IntN(3)), Lifetime: time.Duration(random.IntN(3)) * ttl,
				Stop: random.IntN(3) == 0, Holder: []string{client, "", "x"}[random.IntN(3)], Rank: random.IntN(3) - 1,
				Version: hlc.Timestamp{Wall: int64(random.IntN(2)) * int64(step), Node: "s"}, Will: random.IntN(5) == 0,
				Created: random.IntN(2) == 0,
				Refusal: []string{"", string(protocol.FencingTokenLower)}[random.IntN(2)],
				User:    []string{"", "u", "v"}[random.IntN(3)],
			}
			if random.IntN(2) == 0 {
				e.Kind = Request
			}
			m.Observe(e)
			if random.IntN(100) == 0 {
				m.State(now)
			}
			checkBounds(t, m)
		}
		state := m.State(now)
		if len(state.Leases) > options.Shown || len(state.Clients) > options.Shown || len(state.Timeline) > options.Timeline || len(state.StaleWrites) > options.StaleWrites {
			t.Fatalf("seed %d: the state has %d leases, %d clients, %d changes", seed, len(state.Leases), len(state.Clients), len(state.Timeline))
		}
		if _, err := json.Marshal(state); err != nil {
			t.Fatal(err)
		}
	}
}

func checkBounds(t *testing.T, m *Model) {
	t.Helper()
	if len(m.names) > m.options.Names || len(m.clients) > m.options.Clients || len(m.takeOvers.byClient) > m.options.Clients {
		t.Fatalf("%d names, %d clients", len(m.names), len(m.clients))
	}
	if m.nameShares.count != len(m.names) || m.clientShares.count != len(m.clients) {
		t.Fatalf("the shares have %d of %d names, and %d of %d clients", m.nameShares.count, len(m.names), m.clientShares.count, len(m.clients))
	}
	if m.timeline.shares.count > m.options.Timeline || m.stale.shares.count > m.options.StaleWrites {
		t.Fatalf("%d changes, %d stale writes", m.timeline.shares.count, m.stale.shares.count)
	}
	checkShares(t, &m.nameShares)
	checkShares(t, &m.clientShares)
	checkShares(t, &m.timeline.shares)
	checkShares(t, &m.stale.shares)
	waiters, waits := 0, 0
	for _, n := range m.names {
		waiters += len(n.value.waiters)
		if len(n.value.waiters) > waitersOf || n.value.held != (n.node.in == &n.share.value.classes[heldName]) {
			t.Fatalf("%d waiters of %s; held %t", len(n.value.waiters), n.value.key, n.value.held)
		}
		for _, w := range n.value.waiters {
			if m.clients[w.client.value.id] != w.client || !slices.Contains(w.client.value.waits, w) {
				t.Fatalf("a client that is forgotten waits for %s", n.value.key)
			}
		}
	}
	for _, c := range m.clients {
		waits += len(c.value.waits)
	}
	if waiters != m.waits.count || waits != m.waits.count || m.waits.count > waitersFor*m.options.Clients {
		t.Fatalf("%d waiters, %d waits, %d counted", waiters, waits, m.waits.count)
	}
	checkShares(t, &m.waits)
}

// checkShares checks that the counts of shares agree with what is in them.
func checkShares[T any](t *testing.T, s *shares[T]) {
	t.Helper()
	all := 0
	for _, u := range s.users {
		ofUser := 0
		for _, c := range u.value.clients {
			n := 0
			for i := range c.value.classes {
				n += c.value.classes[i].count
			}
			if n == 0 || n != c.value.count || c.in != u.value.byCount.byCount[n] {
				t.Fatalf("a client has %d, and counts %d", n, c.value.count)
			}
			ofUser += n
		}
		if ofUser == 0 || ofUser != u.value.count || u.in != s.byCount.byCount[ofUser] {
			t.Fatalf("a user has %d, and counts %d", ofUser, u.value.count)
		}
		all += ofUser
	}
	if all != s.count || len(s.byCount.byCount) > s.count+1 {
		t.Fatalf("there are %d, and %d are counted", all, s.count)
	}
}

// A store may have a million leases. The model remembers some of them, and says so.
func TestAMillionLeasesTakeNoMoreMemoryThanTheModelMayHave(t *testing.T) {
	w := newWorld(t, Options{})
	count := 50_000
	if prerequisite.LongRun() {
		count = 1_000_000
	}
	e := Event{Kind: Request, At: noon, Verb: statestore.VerbSet, Condition: statestore.IfMissingOrEqual, Lifetime: time.Hour,
		Rank: -1, Outcome: statestore.OK}
	for i := range count {
		e.Key = fmt.Sprint("lease-", i)
		e.Client = fmt.Sprint("client-", i)
		e.Holder, e.Version = e.Client, hlc.Timestamp{Wall: int64(i + 1), Node: "s"}
		w.model.Observe(e)
	}
	checkBounds(t, w.model)
	state := w.model.State(noon)
	if len(state.Leases) != defaultShown || state.LeasesHidden != defaultNames-defaultShown || state.LeasesForgotten != uint64(count-defaultNames) {
		t.Errorf("%d shown, %d hidden, %d forgotten", len(state.Leases), state.LeasesHidden, state.LeasesForgotten)
	}
}

func BenchmarkObserveRenewal(b *testing.B) {
	m := New(Options{})
	e := Event{Kind: Request, At: noon, Verb: statestore.VerbSet, Condition: statestore.IfMissingOrEqual, Lifetime: time.Hour,
		Rank: -1, Outcome: statestore.OK, Client: "c", Holder: "c"}
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("lease-", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e.Key, e.At, e.Version = keys[i%len(keys)], e.At.Add(time.Millisecond), hlc.Timestamp{Wall: int64(i + 1), Node: "s"}
		m.Observe(e)
	}
}

func BenchmarkState(b *testing.B) {
	m := New(Options{})
	for i := range defaultNames {
		m.Observe(Event{Kind: Request, At: noon, Verb: statestore.VerbSet, Condition: statestore.IfMissingOrEqual, Lifetime: time.Hour,
			Rank: -1, Outcome: statestore.OK, Client: fmt.Sprint("c", i), Holder: "h", Key: fmt.Sprint("k", i), Version: hlc.Timestamp{Wall: 1, Node: "s"}})
	}
	for b.Loop() {
		m.State(noon)
	}
}

// flood is a client, or many of one user, that does what takes most room.
type flood struct {
	name string
	id   func(i int) string
	user string
}

var floods = []flood{
	{"one client", func(int) string { return "mallory" }, ""},
	{"one client of the same user", func(int) string { return "mallory" }, "user of a"},
	{"one user with many client ids", func(i int) string { return fmt.Sprint("mallory-", i) }, "mallory"},
}

func (f flood) event(w *world, i int) Event {
	w.version++
	return Event{
		Kind: Request, Client: f.id(i), User: f.user, Verb: statestore.VerbSet, Key: fmt.Sprintf("!%05d", i), Condition: statestore.IfMissingOrEqual,
		Lifetime: ttl, Rank: -1, Outcome: statestore.OK, Version: hlc.Timestamp{Wall: w.version, Node: "s"},
	}
}

// A client that takes all room it can get must not make the model forget the leases of others, nor hide
// them: an alarm would never come.
func TestAFloodOfNamesHidesNoLeaseOfAnotherClient(t *testing.T) {
	for _, f := range floods {
		for name, ends := range map[string]bool{"held": false, "released": true} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				w := newWorld(t, Options{Names: 2000, Shown: 100})
				w.set("a", "held")
				w.set("a", "lost")
				w.tell(Event{Kind: Expired, Key: "lost"})
				for i := range 10_000 {
					e := f.event(w, i)
					w.tell(e)
					if ends {
						w.tell(Event{Kind: Request, Client: e.Client, User: e.User, Verb: statestore.VerbVDel, Key: e.Key, Rank: -1, Outcome: statestore.Deleted, Version: e.Version})
					}
				}
				w.set("b", "late")
				checkBounds(t, w.model)
				for _, want := range []string{"held", "lost", "late"} {
					if l := w.lease(want); l.Turn > 10 {
						t.Errorf("%s is shown, and has turn %d", want, l.Turn)
					}
				}
			})
		}
	}
}

// What can show a hundred leases shows the same ones from one moment to the next.
func TestALeaseKeepsItsTurnWhenItIsLost(t *testing.T) {
	w := newWorld(t, Options{})
	for i := range 200 {
		w.set("a", fmt.Sprint("k", i))
	}
	w.set("b", "k")
	before := w.lease("k5").Turn
	w.tell(Event{Kind: Expired, Key: "k5"})
	expired := w.lease("k5").Turn
	w.set("b", "k5")
	if after := w.lease("k5").Turn; expired != before || after != before {
		t.Errorf("turn %d, %d after its expiry, and %d with another holder", before, expired, after)
	}
	if got := w.lease("k").Turn; got != 1 {
		t.Errorf("the lease of another user has turn %d", got)
	}
}

// The metrics of a lease do not end because its holder has released it, however many others there are.
func TestALeaseWithALowTurnIsShownAfterItsRelease(t *testing.T) {
	w := newWorld(t, Options{Shown: 100})
	for i := range 10 {
		w.set("bob", fmt.Sprint("b", i))
	}
	for i := range 1000 {
		w.set("mallory", fmt.Sprint("m", i))
	}
	w.releases("bob", "b0")
	w.releases("bob", "b4")
	w.releases("bob", "b9")
	if a, b := w.lease("b0"), w.lease("b4"); a.Turn != 0 || b.Turn >= 10 || a.Held || b.Held {
		t.Errorf("%+v, %+v", a, b)
	}
	state := w.model.State(w.now)
	if len(state.Leases) != 100 || slices.ContainsFunc(state.Leases, func(l Lease) bool { return l.Name == "b9" }) {
		t.Errorf("%d leases; a released one with a high turn takes the place of one that is held", len(state.Leases))
	}
}

func TestAFloodOfChangesHidesNoFailoverOfAnotherLease(t *testing.T) {
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t, Options{Timeline: 50, StaleWrites: 10})
			w.set("a", "k")
			w.after(ttl).tell(Event{Kind: Expired, Key: "k"})
			stale := Event{Kind: Request, Client: "a", User: "user of a", Verb: statestore.VerbSet, Key: "file", Rank: -1, Outcome: statestore.Refused, Refusal: string(protocol.FencingTokenLower)}
			w.tell(stale)
			for i := range 1000 {
				w.tell(f.event(w, i))
				w.tell(Event{Kind: Expired, Key: fmt.Sprintf("!%05d", i)})
				stale.Client, stale.User = f.id(i), f.user
				w.tell(stale)
			}
			checkBounds(t, w.model)
			state := w.model.State(w.now)
			if !slices.ContainsFunc(state.Timeline, func(c Change) bool { return c.Name == "k" && c.Cause == CauseExpired }) || len(state.Timeline) != 50 {
				t.Errorf("the failover is not among %d changes", len(state.Timeline))
			}
			if !slices.ContainsFunc(state.StaleWrites, func(w StaleWrite) bool { return w.Client == "a" }) || len(state.StaleWrites) != 10 {
				t.Errorf("the stale write is not among %d", len(state.StaleWrites))
			}
			if state.TimelineForgotten == 0 {
				t.Error("no change is counted as forgotten")
			}
		})
	}
}

func TestAFloodOfClientsHidesNoClientOfAnotherUser(t *testing.T) {
	w := newWorld(t, Options{Clients: 100, Shown: 10})
	w.tell(Event{Kind: Connected, Client: "a", User: "ana"})
	w.tell(Event{Kind: Disconnected, Client: "a"})
	for i := range 1000 {
		w.tell(Event{Kind: Connected, Client: fmt.Sprint("mallory-", i), User: "mallory"})
	}
	checkBounds(t, w.model)
	state := w.model.State(w.now)
	if !slices.ContainsFunc(state.Clients, func(c Client) bool { return c.Client == "a" }) || len(state.Clients) != 10 {
		t.Errorf("the client is not among %d", len(state.Clients))
	}
}

// Of one client, names are forgotten in the order of what is lost with them.
func TestWhatIsForgottenFirst(t *testing.T) {
	w := newWorld(t, Options{Names: 4})
	watch := func(client, key string) {
		w.tell(Event{Kind: Request, Client: client, User: "user of " + client, Verb: statestore.VerbKeyNotify, Key: key, Rank: -1, Outcome: statestore.OK})
	}
	known := func() string {
		var keys []string
		for key := range w.model.names {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		return strings.Join(keys, " ")
	}
	w.set("a", "free")
	w.tell(Event{Kind: Expired, Key: "free"})
	w.set("a", "held-1")
	w.set("a", "held-2")
	watch("a", "watched")
	w.set("a", "held-1") // so held-2 was used the longest ago
	for _, step := range []struct{ add, want string }{
		{"held-3", "free held-1 held-2 held-3"},
		{"held-4", "held-1 held-2 held-3 held-4"},
		{"held-5", "held-1 held-3 held-4 held-5"},
	} {
		w.set("a", step.add)
		if got := known(); got != step.want {
			t.Errorf("after %s it knows %q, want %q", step.add, got, step.want)
		}
	}
}

// Of clients with one name each, the one that was silent for longest is forgotten first.
func TestASilentClientIsForgottenBeforeOneThatRenews(t *testing.T) {
	for name, user := range map[string]string{"of one user": "u", "each a user": ""} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Names: 2})
			for _, i := range []int{1, 2, 1, 3} {
				client := fmt.Sprint("client-", i)
				w.tell(flood{id: func(int) string { return client }, user: cmp.Or(user, client)}.event(w, i))
			}
			if w.model.names["!00001"] == nil || w.model.names["!00002"] != nil {
				t.Errorf("it knows %d names; the second client was silent for longest", len(w.model.names))
			}
		})
	}
}

// A name that a client watches before it has a holder belongs to the holder afterwards.
func TestANameBelongsToItsFirstHolder(t *testing.T) {
	w := newWorld(t, Options{Names: 10})
	w.tell(Event{Kind: Request, Client: "mallory", Verb: statestore.VerbKeyNotify, Key: "k", Rank: -1, Outcome: statestore.OK})
	w.set("a", "k")
	for i := range 100 {
		w.tell(floods[0].event(w, i))
	}
	if l := w.lease("k"); l.Holder != "a" {
		t.Errorf("%+v", l)
	}
}

// An entry that stands for many releases comes back when it was pushed out.
func TestAReleaseAfterItsEntryWasForgottenIsInTheTimeline(t *testing.T) {
	w := newWorld(t, Options{Timeline: 2})
	job := func(name string) {
		w.after(time.Minute).set("cron", name)
		w.after(time.Second).releases("cron", name)
	}
	for _, name := range []string{"a", "a", "b", "c", "a"} {
		job(name)
	}
	if got := w.model.State(w.now).Timeline[0]; got.Name != "a" || !got.Ended.Equal(w.now) {
		t.Errorf("the latest entry is %+v", got)
	}
}
