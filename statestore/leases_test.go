package statestore

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
)

// A plant is a world in which users hold leases, with what a journal keeps of it.
type plant struct {
	*world
	disk disk
	sent int
}

func newPlant(t testing.TB) *plant {
	d := make(disk)
	return &plant{world: d.world(t, Options{}), disk: d}
}

// do sends a command of a client, or user/client, that sees its fields before.
func (p *plant) do(who, line string, also ...func(*Command)) Reply {
	p.tb.Helper()
	client, user := who, ""
	if before, after, found := strings.Cut(who, "/"); found {
		client, user = after, before
	}
	ts := fmt.Sprintf("%d:0:c", p.now.WallMillis)
	p.sent++
	command := Parse(Request{
		Client: client, Payload: []byte(payload(strings.Split(line, " ")...)), Timestamp: &ts, Correlation: fmt.Append(nil, p.sent),
	})
	command.User = user
	for _, change := range also {
		change(&command)
	}
	reply, effects := p.store.Apply(p.now, command)
	p.disk.write(effects.Groups)
	p.check()
	return reply
}

// expire lets some time pass, and removes what has expired.
func (p *plant) expire(d time.Duration) {
	p.pass(d)
	effects, _ := p.store.Expire(p.now, 1000)
	p.disk.write(effects.Groups)
	p.check()
}

// check checks that all places and counts agree.
func (p *plant) check() {
	p.tb.Helper()
	l := &p.store.leases
	held, counted := 0, make(map[*source]int)
	for _, c := range l.history {
		counted[c.by]++
	}
	for i, s := range l.ordered {
		if s.place != i || l.sources[s.sourceID] != s || s.changes != counted[s] || s.changes+len(s.leases) == 0 {
			p.tb.Fatalf("the client %+v is filed wrongly", s.sourceID)
		}
		for place, e := range s.leases {
			if e.lease.place != place || e.lease.holder != s || p.store.entries[e.key] != e {
				p.tb.Fatalf("the lease %s is filed wrongly", e.key)
			}
		}
		held += len(s.leases)
	}
	slots := make(map[uint64]bool)
	for i, c := range l.history {
		slots[c.slot] = true
		if i > 0 && l.history[i-1].sequence >= c.sequence || l.latest[c.Name] == nil {
			p.tb.Fatalf("the change of %s is filed wrongly", c.Name)
		}
	}
	if held != l.totals.Held || len(l.history) > maxChanges || len(slots) != len(l.history) || len(l.sources) != len(l.ordered) {
		p.tb.Fatalf("%d leases are held, counted as %d; %d changes in %d slots", held, l.totals.Held, len(l.history), len(slots))
	}
}

// history describes the changes, the first one first.
func (p *plant) history() []string {
	status, _ := p.store.Status(p.now, 1000)
	all := []string{}
	for _, h := range slices.Backward(status.Changes) {
		text := fmt.Sprintf("%s: %s %s->%s", h.Name, h.Cause, h.From, h.To)
		if h.By != "" {
			text += " by " + h.By
		}
		if h.Repeated > 0 {
			text += fmt.Sprintf(", %d before", h.Repeated)
		}
		all = append(all, text)
	}
	return all
}

func (p *plant) wantHistory(want ...string) {
	p.tb.Helper()
	if got := p.history(); !slices.Equal(got, want) {
		p.tb.Errorf("the history is\n%q; want\n%q", got, want)
	}
}

// lease returns what is shown of a lease.
func (p *plant) lease(name string) Lease {
	p.tb.Helper()
	row, ok := p.store.Lease(p.now, name)
	if !ok {
		p.tb.Fatalf("%s is not shown", name)
	}
	return row
}

func TestTheHistorySaysWhyALeaseEnded(t *testing.T) {
	for _, test := range []struct {
		name, end string
		who       string
		also      func(*Command)
		want      string
		forced    bool
	}{
		{"a release", "VDEL k a:1", "a", nil, "k: released a-> by a", false},
		{"a deletion by the holder", "DEL k", "a", nil, "k: deleted a-> by a", false},
		{"a deletion by another client", "VDEL k a:1", "b", nil, "k: forced a-> by b", true},
		{"a release that says it is forced", "VDEL k a:1", "a", func(c *Command) { c.Forced = "x" }, "k: forced a-> by a", false},
		{"a Will", "VDEL k a:1", "a", func(c *Command) { c.Will = true }, "k: will a-> by a", false},
		{"another client's value", "SET k b PX 5000", "b", nil, "k: forced a->b by b", true},
		{"the holder's new value in place of its own", "SET k b:1 NEX a:1 PX 5000", "a", nil, "k: overwritten a->a by a", false},
		{"the same client's value without a lifetime", "SET k x", "a", nil, "k: overwritten a-> by a", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlant(t)
			p.do("a", "SET k a:1 NEX PX 5000")
			if test.also == nil {
				test.also = func(*Command) {}
			}
			reply := p.do(test.who, test.end, test.also)
			if got := p.history(); !strings.HasPrefix(got[1], test.want) {
				t.Errorf("the history is %q; want %q", got, test.want)
			}
			if (reply.Forced != nil) != test.forced {
				t.Errorf("taken from another client: %+v", reply.Forced)
			}
		})
	}
}

// A job that runs now and then must not push failovers out of the history.
func TestReleasesThatNoOtherClientFollowsAreOneEntry(t *testing.T) {
	p := newPlant(t)
	for range 5 {
		p.do("a", "SET job a:1 NX PX 5000")
		p.do("a", "VDEL job a:1")
	}
	p.wantHistory("job: acquired ->a", "job: released a-> by a, 4 before")
	p.do("b", "SET job b:1 NX PX 5000")
	p.wantHistory("job: acquired ->a", "job: released a->b by a, 4 before")
	if l := p.lease("job"); l.Changes != 1 || l.LastChange.GapMillis != 0 {
		t.Errorf("%+v", l)
	}
}

// Clients that cause changes without end push their own out, and not those of others.
func TestNoClientTakesTheHistoryOfOthers(t *testing.T) {
	p := newPlant(t)
	p.do("plant/press", "SET press a:1 NX PX 5000")
	p.do("flood/honest", "SET calm a:1 NX PX 5000")
	p.expire(6 * time.Second)
	for i := range 2 * maxChanges {
		p.do(fmt.Sprintf("flood/c%d", i%3), fmt.Sprintf("SET k%d v NX PX 1", i))
		p.expire(time.Second)
	}
	got := p.history()
	if len(got) != maxChanges || !slices.Equal(got[:4], []string{"press: acquired ->press", "calm: acquired ->honest", "press: expired press->", "calm: expired honest->"}) {
		t.Errorf("%d changes; the oldest are %q", len(got), got[:4])
	}
	if n := len(p.store.leases.sources); n != 5 {
		t.Errorf("%d clients are known; want those of the changes", n)
	}
}

// What is shown has a bound. A client with very many leases does not hide the others.
func TestTheLeasesOfEachClientAreShownInTurn(t *testing.T) {
	p := newPlant(t)
	for i := range 40 {
		p.do("many/m"+fmt.Sprint(i%2), fmt.Sprintf("SET m%02d v NX PX 500000", i))
	}
	p.do("one/a", "SET a v NX PX 500000")
	p.do("one/b", "SET b v NX PX 500000")
	p.do("one/b", "SET c v NX PX 500000")
	status, names := p.store.Status(p.now, 6)
	if want := []string{"m00", "m01", "a", "b", "m02", "m03"}; !slices.Equal(names, want) || status.Totals.Held != 43 {
		t.Errorf("%q; want %q", names, want)
	}
	p.do("one/a", "VDEL a v") // it keeps its turn
	if _, names := p.store.Status(p.now, 6); !slices.Contains(names, "a") {
		t.Errorf("after the release of a: %q", names)
	}
}

// A value may be secret. The name of a holder is told only where package lease has put it.
func TestNoPartOfAValueIsTheNameOfAHolder(t *testing.T) {
	const nonce = "0123456789abcdef0123456789abcdef"
	for _, test := range []struct{ value, holder string }{
		{"holder:" + nonce, "holder"},
		{"host:8080:" + nonce, "host:8080"},
		{strings.Repeat("h", 1000) + ":" + nonce, shown.Cut(strings.Repeat("h", 1000))},
		{"c:anything", "c"},
		{"cat:anything", "c"},
		{"postgres://admin:hunter2@db:5432", "c"},
		{"secret:" + nonce[1:], "c"},
		{"secret:" + strings.ToUpper(nonce), "c"},
		{nonce, "c"},
		{"", "c"},
	} {
		p := newPlant(t)
		p.do("c", "SET k "+test.value+" NX PX 5000")
		if got := p.lease("k").Holder; got != test.holder {
			t.Errorf("%.30q: the holder is %.30q; want %.30q", test.value, got, test.holder)
		}
	}
}

// itWaits makes a KEYNOTIFY one of a client that waits for the lease.
func itWaits(c *Command) { c.Waits = true }

// A client waits that says so, or that was refused the lease and watches it. An observer only watches it.
func TestClientsThatWaitAreShown(t *testing.T) {
	p := newPlant(t)
	for _, line := range []string{
		"a SET k a:1 NX PX 300000", "a KEYNOTIFY k", "b SET k b:1 NX PX 300000", "b SET k b:1 NX PX 300000", "b KEYNOTIFY k", "observer KEYNOTIFY k",
		"b SET k" + protocol.FailBackSuffix + " b:3 NX PX 1000",
	} {
		client, words, _ := strings.Cut(line, " ")
		p.do(client, words)
	}
	p.do("w", "KEYNOTIFY k", itWaits)
	row := p.lease("k")
	if len(row.Waiting) != 2 || row.WaitingHidden != 0 || len(p.history()) != 1 {
		t.Fatalf("%+v, %q", row, p.history())
	}
	if b, w := row.Waiting[0], row.Waiting[1]; b.Client != "b" || !b.Bids || *b.Rank != 3 || w.Client != "w" || w.Bids {
		t.Errorf("%+v", row.Waiting)
	}
	p.expire(2 * time.Second) // the request for the lead
	for i := range 50 {
		p.do(fmt.Sprint("x", i), "KEYNOTIFY k", itWaits)
		p.do(fmt.Sprint("y", i), "SET k y NX PX 300000") // it does not watch the lease
	}
	if row := p.lease("k"); len(row.Waiting) != shownWaiters || row.Waiting[0].Client != "b" || row.WaitingHidden != 52-shownWaiters {
		t.Errorf("%d are shown and %d hidden: %+v", len(row.Waiting), row.WaitingHidden, row.Waiting)
	}
}

// A holder without a standby is shown with the last client that could have taken over, and when that was gone.
func TestALeaseThatHasLostItsStandbyIsShown(t *testing.T) {
	at := func(seconds int) time.Time { return wallOf(noon).Add(time.Duration(seconds) * time.Second) }
	for _, test := range []struct {
		name, steps string // a second passes before each step
		gone        string
		since       time.Time
	}{
		{"none ever waited", "a:take o:watch o:leave", "", time.Time{}},
		{"one waits", "a:take b:wait", "", time.Time{}},
		{"it has disconnected", "a:take b:wait b:leave", "b", at(3)},
		{"it has given up", "a:take b:wait b:stop o:watch", "b", at(3)},
		{"it was refused, and watched", "a:take b:take b:watch b:leave", "b", at(4)},
		{"it watched, and was refused", "a:take b:watch b:take b:leave", "b", at(4)},
		{"the last of two", "a:take b:wait c:wait c:leave b:leave", "b", at(5)},
		{"it is back", "a:take b:wait b:leave b:wait", "", time.Time{}},
		{"it has taken over from a holder that expired", "a:take b:wait a:expires b:take", "a", at(2)},
		{"it has taken over from a holder that released", "a:take b:wait a:release b:take0", "a", at(3)},
		{"the holder before was another job", "a:take a:release -:- b:take", "", time.Time{}},
		{"the holder has it again", "a:take b:wait b:leave a:expires a:take", "b", at(3)},
		{"it leads, and the other is back", "a:take b:wait a:expires b:take a:wait", "", time.Time{}},
		{"it leads, and the other was back", "a:take b:wait a:expires b:take a:wait a:leave", "a", at(14)},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlant(t)
			for _, step := range strings.Fields(test.steps) {
				client, what, _ := strings.Cut(step, ":")
				if what != "take0" {
					p.expire(time.Second)
				}
				switch what {
				case "take", "take0":
					p.do(client, "SET k "+client+":1 NX PX 9000")
				case "release":
					p.do(client, "VDEL k "+client+":1")
				case "expires":
					p.expire(8 * time.Second)
				case "watch":
					p.do(client, "KEYNOTIFY k")
				case "wait":
					p.do(client, "KEYNOTIFY k", itWaits)
					p.do("a", "SET k a:1 NEX PX 9000") // it renews, if it is the holder
				case "stop":
					p.do(client, "KEYNOTIFY k STOP")
				case "leave":
					p.store.Disconnect(p.now, client, math.MaxInt)
					p.check()
				}
			}
			if l := p.lease("k"); l.Gone != test.gone || !l.GoneSince.Equal(test.since) {
				t.Errorf("%s is gone since %v; want %s since %v; %+v", l.Gone, l.GoneSince, test.gone, test.since, l)
			}
		})
	}
}

// A time without a holder begins with the last sign of it, and goes on until the next one has the lease.
func TestTheTimeWithoutAHolderCountsFromTheLastRenewal(t *testing.T) {
	p := newPlant(t)
	p.do("a", "SET k a:1 NX PX 5000")
	p.pass(time.Second)
	p.do("a", "SET k a:1 NEX PX 5000")
	p.expire(7 * time.Second)
	again := &plant{world: p.disk.world(t, Options{}), disk: p.disk}
	again.now.WallMillis = p.now.WallMillis
	for _, p := range []*plant{p, again} {
		if l := p.lease("k"); l.NoHolderMillis != 7000 || !l.NoHolderSince.Equal(wallOf(noon).Add(time.Second)) || !l.Down {
			t.Errorf("%+v", l)
		}
		p.pass(time.Second)
		p.do("b", "SET k b:1 NX PX 5000")
		if h := p.lease("k").LastChange; h.GapMillis != 8000 || h.To != "b" {
			t.Errorf("%+v", h)
		}
	}
}

// A lease is down that its holder has lost, or that clients wait for, and not one that is done with.
func TestALeaseIsDownThatWasNotReleased(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(*plant)
		down bool
	}{
		{"released", func(p *plant) { p.do("a", "VDEL k a:1") }, false},
		{"released, and a client waits", func(p *plant) { p.do("a", "VDEL k a:1"); p.do("b", "KEYNOTIFY k", itWaits) }, true},
		{"released, and a client watches", func(p *plant) { p.do("a", "VDEL k a:1"); p.do("b", "KEYNOTIFY k") }, false},
		{"expired", func(p *plant) { p.expire(6 * time.Second) }, true},
		{"by force", func(p *plant) { p.do("b", "DEL k") }, true},
		{"for ever", func(p *plant) { p.do("a", "SET k a:1") }, false},
	} {
		p := newPlant(t)
		p.do("a", "SET k a:1 NX PX 5000")
		if test.end(p); p.lease("k").Down != test.down {
			t.Errorf("%s: %+v", test.name, p.lease("k"))
		}
	}
}

// A lease without a holder is shown while a client waits for it, and otherwise for an hour.
func TestALeaseWithoutAHolderIsShownForAnHour(t *testing.T) {
	p := newPlant(t)
	for _, name := range []string{"done", "wanted"} {
		p.do("a", "SET "+name+" a:1 NX PX 5000")
		p.do("a", "VDEL "+name+" a:1")
	}
	p.do("b", "KEYNOTIFY wanted", itWaits)
	for _, want := range []string{"[done wanted]", "[wanted]"} {
		status, names := p.store.Status(p.now, 10)
		if slices.Sort(names); fmt.Sprint(names) != want || status.Totals.Free != len(names) {
			t.Errorf("after %v: %q, counted as %d; want %s", p.now.Elapsed, names, status.Totals.Free, want)
		}
		p.pass(freeFor + time.Second)
	}
	if l := p.lease("wanted"); l.Held || l.Holder != "a" || l.Client != "a" || l.NoHolderMillis != 2*(freeFor+time.Second).Milliseconds() || len(l.Waiting) != 1 {
		t.Errorf("%+v", l)
	}
}

// What a store writes, the next one reads, though the clock of the machine is before 1970 or after the year 9999.
func TestTheRecordsOfALeaseAreReadableWhateverTheClockSays(t *testing.T) {
	for _, wall := range []int64{-5000, 0, 5000, latestMoment, latestMoment + 5000, math.MaxInt64 / 2} {
		t.Run(fmt.Sprint(wall), func(t *testing.T) {
			p := newPlant(t)
			p.now.WallMillis = wall
			restart := func() {
				store, first, err := p.disk.openAfter(Options{}, p.now, Former{Idle: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				p.store = store
				p.disk.write([]Group{first})
				store.Committed(store.Bound())
			}
			p.disk.setWilled(p.world, true, "k", "a:1", "NX", "PX", "5000")
			restart() // the connection of the holder ended an hour ago
			p.expire(0)
			p.disk.setWilled(p.world, false, "k", "a:2", "NX", "PX", "5000")
			p.store.Lost(p.now, "c", "")
			p.expire(6 * time.Second)
			restart()
			p.wantHistory("k: acquired ->c", "k: will c->c", "k: expired c->")
			if status, _ := p.store.Status(p.now, 1); status.Changes[0].Disconnected.IsZero() {
				t.Error("the end of the connection is not kept")
			}
		})
	}
}

// A key, a client id and a value may have a mebibyte, and the history has very many of them.
func TestTheHistoryHasNoLongTexts(t *testing.T) {
	p := newPlant(t)
	long := strings.Repeat("x", 1<<14)
	for i := range maxChanges + 10 {
		key := fmt.Sprint(i%3, long)
		p.do(long+"/"+long, "SET "+key+" "+long+":0123456789abcdef0123456789abcdef NX PX 5000", func(c *Command) { c.Forced = shown.Cut(long) })
		p.do(long+"/"+long, "DEL "+key, func(c *Command) { c.Forced = shown.Cut(long) })
	}
	for id, value := range p.disk {
		if id[0] == idChange && len(value) > 10*shown.Max {
			t.Fatalf("a change has %d bytes", len(value))
		}
	}
	if len(p.history()) != maxChanges || len(p.store.leases.latest) != 3 {
		t.Errorf("%d changes of %d leases", len(p.history()), len(p.store.leases.latest))
	}
}
