package statestore

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// A disk is what a journal has.
type disk map[string][]byte

func (d disk) write(groups []Group) {
	for _, group := range groups {
		for _, record := range group {
			if record.Value == nil {
				delete(d, string(record.ID))
			} else {
				d[string(record.ID)] = record.Value
			}
		}
	}
}

// open returns a store with the records of the disk, in an order of its own, and its first
// group.
func (d disk) open(options Options, now Instant) (*Store, Group, error) {
	options.Journaled = true
	store, err := New(options)
	if err != nil {
		return nil, nil, err
	}
	for id, value := range d {
		if err := store.Restore(Record{ID: []byte(id), Value: value}); err != nil {
			return nil, nil, err
		}
	}
	first, err := store.Restored(now)
	return store, first, err
}

// newDurable returns a world whose store has the records of d. Its first group is durable.
func (d disk) world(tb testing.TB, options Options) *world {
	tb.Helper()
	w := &world{tb: tb, now: Instant{WallMillis: noon, Elapsed: time.Hour}}
	store, first, err := d.open(options, w.now)
	if err != nil {
		tb.Fatal(err)
	}
	w.store = store
	d.write([]Group{first})
	store.Committed(store.Bound())
	return w
}

// describe returns a line for each piece of the state that survives a restart: all but the
// expiry times, and the versions of keys with a lifetime.
func describe(s *Store) map[string]string {
	lines := map[string]string{"identity": fmt.Sprintf("%q %t", s.options.Identity, s.holding)}
	for key, e := range s.entries {
		version := e.version.timestamp().String()
		if e.lifetime > 0 {
			version = "a version"
		}
		lines["key "+key] = fmt.Sprintf("%q %s token %v lifetime %v", e.value, version, e.token, e.lifetime)
	}
	for key, fence := range s.fences {
		lines["fence "+key] = fence.String()
	}
	for client, session := range s.sessions.byClient {
		for i := range session.ring {
			if e := &session.ring[i]; e.records == ownRecord {
				lines[fmt.Sprintf("reply %s %d", client, e.slot)] = fmt.Sprint(e.correlation, e.sum, e.verb, e.outcome, e.version.timestamp())
			}
		}
	}
	return lines
}

// A crashRun is a store that crashes again and again, as an engine and a journal run it: replies
// and notifications leave only after the commit that they rest on.
type crashRun struct {
	*world
	random  *rand.Rand
	options Options
	disk    disk
	trace   []string

	open, committing batch
	bound            hlc.Timestamp // of the batch that is being committed
	underWay         bool

	left    hlc.Timestamp // the highest version that left
	states  []map[string]string
	sent    int
	latest  []delivered // requests whose replies are remembered
	commits int
	free    int // requests that could be known to need no record
}

// A batch has groups, and after each the state that the store had then, or nil if that was
// within a command.
type batch struct {
	groups []Group
	states []map[string]string
	held   []hlc.Timestamp
	sent   []delivered
	keys   map[string]bool
}

type delivered struct {
	request Request
	reply   Reply
}

func (r *crashRun) logf(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (r *crashRun) fatalf(format string, args ...any) {
	r.tb.Helper()
	r.tb.Fatalf("%s\nafter\n%s", fmt.Sprintf(format, args...), strings.Join(r.trace[max(len(r.trace)-60, 0):], "\n"))
}

func (r *crashRun) add(groups []Group, keys []string) {
	for i, group := range groups {
		if len(group) == 0 || len(group) > MaxGroup {
			r.fatalf("a group has %d records", len(group))
		}
		r.open.groups = append(r.open.groups, group)
		var state map[string]string
		if i == len(groups)-1 {
			state = describe(r.store)
		}
		r.open.states = append(r.open.states, state)
	}
	for _, key := range keys {
		if r.open.keys == nil {
			r.open.keys = make(map[string]bool)
		}
		r.open.keys[key] = true
	}
}

func (r *crashRun) leave(version hlc.Timestamp) {
	bound, err := Record{ID: []byte{idBound}, Value: r.disk[string(idBound)]}.Decode()
	if err != nil || above(version, bound.Version) {
		r.fatalf("version %v leaves, and the bound is %v, %v", version, bound.Version, err)
	}
	if above(version, r.left) {
		r.left = version
	}
}

// send sends a request as an engine does.
func (r *crashRun) send(request Request, issues bool) {
	command := Parse(request)
	mayWrite := r.store.MayWrite(r.now, &command)
	reply, effects := r.store.Apply(r.now, command)
	if !mayWrite {
		r.free++
	}
	r.logf("%s %.60q at %d: %v %v, %d groups", request.Client, request.Payload, r.now.WallMillis, reply.Outcome, reply.Version, len(effects.Groups))
	if !mayWrite && len(effects.Groups) > 0 {
		r.fatalf("MayWrite is false, and there are %d groups", len(effects.Groups))
	}
	if len(effects.Keys) < len(effects.Groups) {
		r.fatalf("%d groups about %q", len(effects.Groups), effects.Keys)
	}
	issued := hlc.Timestamp{}
	if issues && reply.Err == nil && reply.Outcome != Refused {
		issued = reply.Version
	}
	for _, n := range effects.Notifications {
		if len(effects.Groups) == 0 && n.Deleted {
			r.fatalf("the removal of %q has no record", n.Key)
		}
	}
	key := command.Key
	r.add(effects.Groups, effects.Keys)
	remembered := delivered{request, reply}
	switch {
	case len(effects.Groups) > 0:
		r.open.held = append(r.open.held, issued)
		own := effects.Groups[len(effects.Groups)-1]
		if _, err := own[len(own)-1].Decode(); err == nil && own[len(own)-1].ID[0] == idReply {
			r.open.sent = append(r.open.sent, remembered)
		}
	case r.open.keys[key]:
		r.open.held = append(r.open.held, issued)
	case r.underWay && r.committing.keys[key]:
		r.committing.held = append(r.committing.held, issued)
	default:
		r.leave(issued)
	}
	if group := r.store.Reserve(r.now); group != nil {
		r.add([]Group{group}, nil)
	}
}

func (r *crashRun) begin() {
	if r.underWay || len(r.open.groups) == 0 {
		return
	}
	r.underWay, r.committing, r.open = true, r.open, batch{}
	r.bound = r.store.Bound()
}

func (r *crashRun) finish() {
	if !r.underWay {
		return
	}
	r.logf("commit of %d groups", len(r.committing.groups))
	r.underWay = false
	r.commits++
	r.disk.write(r.committing.groups)
	r.store.Committed(r.bound)
	for _, version := range r.committing.held {
		r.leave(version)
	}
	r.latest = append(r.latest, r.committing.sent...)
	r.latest = r.latest[max(len(r.latest)-20, 0):]
	r.states = append(r.states, r.committing.states...)
}

// crash ends the store within a commit: a prefix of its groups is durable. The next store starts
// on another wall clock.
func (r *crashRun) crash() {
	r.tb.Helper()
	kept := r.committing.groups[:0:0]
	var state map[string]string
	if len(r.states) > 0 {
		state = r.states[len(r.states)-1]
	}
	if r.underWay {
		n := r.random.IntN(len(r.committing.groups) + 1)
		kept = r.committing.groups[:n]
		if n > 0 {
			state = r.committing.states[n-1]
		}
	}
	r.disk.write(kept)
	r.logf("crash with %d of %d groups", len(kept), len(r.committing.groups))
	r.restart(state)
}

// stop ends the store cleanly.
func (r *crashRun) stop() {
	r.tb.Helper()
	r.finish()
	if group := r.store.Seal(); group != nil {
		r.add([]Group{group}, nil)
	}
	state := describe(r.store)
	r.begin()
	r.finish()
	clock := r.store.versions.clock
	bound, err := Record{ID: []byte{idBound}, Value: r.disk[string(idBound)]}.Decode()
	if err != nil || bound.Version != (hlc.Timestamp{Wall: clock.Wall, Counter: clock.Counter}) {
		r.fatalf("after a clean stop at %v the bound is %v, %v", clock, bound.Version, err)
	}
	r.logf("stop at %v", clock)
	r.restart(state)
}

func (r *crashRun) restart(state map[string]string) {
	r.tb.Helper()
	switch r.random.IntN(8) {
	case 0: // another machine, with a clock that is behind
		r.now.WallMillis -= r.random.Int64N(3600_000)
	case 1:
		r.now.WallMillis -= 10 * 365 * 86400_000
	case 2:
		r.now.WallMillis += r.random.Int64N(100_000)
	}
	r.now.Elapsed = time.Duration(r.random.IntN(1000)) * time.Millisecond
	if r.store != nil { // else it starts for the first time
		r.latest = slices.DeleteFunc(r.latest, func(sent delivered) bool {
			command := Parse(sent.request)
			_, found := r.store.sessions.lookup(&command)
			return !found // it left the window
		})
	}
	fresh := len(r.disk) == 0
	store, first, err := r.disk.open(r.options, r.now)
	if err != nil {
		r.fatalf("restore: %v", err)
	}
	r.store, r.underWay, r.open, r.committing = store, false, batch{}, batch{}
	got := describe(store)
	for line, was := range state {
		if got[line] != was && line != "identity" {
			r.fatalf("%s is %s; want %s", line, got[line], was)
		}
	}
	for line := range got {
		// The journal may have replies that left the window by one without a record.
		if state != nil && state[line] == "" && !strings.HasPrefix(line, "reply") {
			r.fatalf("there is %s: %s", line, got[line])
		}
	}
	r.states = []map[string]string{got}
	if !fresh && store.Identity() != "the data" {
		r.fatalf("the identity is %q", store.Identity())
	}
	r.usage()
	for _, e := range store.entries {
		if e.lifetime > 0 && !above(e.version.timestamp(), r.left) {
			r.fatalf("%q has version %v; %v was seen", e.key, e.version.timestamp(), r.left)
		}
	}
	if above(r.left, store.versions.clock) {
		r.fatalf("the clock is at %v; %v was seen", store.versions.clock, r.left)
	}
	if _, ok := store.NextExpiry(); ok {
		r.fatalf("a lifetime begins before Begin")
	}
	for _, sent := range r.latest {
		if reply, effects := r.store.Apply(r.now, Parse(sent.request)); reply != sent.reply || len(effects.Groups)+len(effects.Notifications) > 0 {
			r.fatalf("%q delivered again: %v; the first time %v", sent.request.Payload, reply, sent.reply)
		}
	}
	r.latest = nil
	store.Begin(r.now)
	for _, e := range store.entries {
		if e.lifetime > 0 && (e.next == nil || e.deadline != r.now.Elapsed+e.lifetime) {
			r.fatalf("%q ends at %v, now it is %v; its lifetime is %v", e.key, e.deadline, r.now.Elapsed, e.lifetime)
		}
	}
	r.add([]Group{first}, nil)
	r.begin()
	if r.random.IntN(4) == 0 { // it crashes before any reply
		r.crash()
		return
	}
	r.finish()
	if _, issued := store.Apply(r.now, Parse(Request{Client: "probe", Payload: []byte(payload("GET", "probe"))})); len(issued.Groups) > 0 {
		r.fatalf("a GET has records")
	}
}

func (r *crashRun) usage() {
	r.tb.Helper()
	want := Usage{}
	for _, e := range r.store.entries {
		want.Keys++
		want.Bytes += e.size()
	}
	for key := range r.store.fences {
		want.Fences++
		want.Bytes += int64(len(key))
	}
	for _, session := range r.store.sessions.byClient {
		want.DedupEntries += len(session.ring)
	}
	for _, left := range r.store.sessions.leftovers {
		want.ObsoleteRecords += len(left.slots)
	}
	got := r.store.Usage()
	got.Watches, got.WatchBytes, got.DedupBytes = 0, 0, 0
	if got != want {
		r.fatalf("the usage is %+v; want %+v", got, want)
	}
}

func (r *crashRun) step() {
	r.tb.Helper()
	client := programClients[r.random.IntN(3)]
	switch r.random.IntN(40) {
	case 0:
		r.crash()
	case 1:
		if r.random.IntN(4) == 0 {
			r.stop()
		}
	case 2, 3:
		r.begin()
	case 4, 5, 6, 7:
		r.begin()
		r.finish()
	case 8, 9:
		r.pass(time.Duration(r.random.IntN(60)) * time.Millisecond)
	case 10:
		r.pass(time.Duration(r.random.IntN(15)) * time.Second)
	case 11, 12:
		effects, _ := r.store.Expire(r.now, 1+r.random.IntN(3))
		r.logf("expire: %q", effects.Keys)
		r.add(effects.Groups, effects.Keys)
	case 13:
		r.logf("end session %s", client)
		r.latest = slices.DeleteFunc(r.latest, func(d delivered) bool { return d.request.Client == client })
		for _, b := range []*batch{&r.open, &r.committing} {
			b.sent = slices.DeleteFunc(b.sent, func(d delivered) bool { return d.request.Client == client })
		}
		r.store.EndSession(client)
	case 15, 16:
		if groups := r.store.RemoveObsolete(1 + r.random.IntN(3)); len(groups) > 0 {
			r.logf("remove obsolete records")
			r.add(groups, nil)
		}
	case 14:
		r.store.Disconnect(client)
	default:
		r.sendAny(client)
	}
	r.usage()
}

func (r *crashRun) sendAny(client string) {
	r.tb.Helper()
	r.sent++
	key := []string{"k", "l", "m", strings.Repeat("long", 500)}[r.random.IntN(4)]
	verb := []string{"SET", "SET", "SET", "SET", "GET", "DEL", "VDEL", "KEYNOTIFY"}[r.random.IntN(8)]
	words := []string{verb, key}
	if verb == "SET" || verb == "VDEL" {
		words = append(words, programValues[r.random.IntN(3)])
	}
	if verb == "SET" {
		words = append(words, [][]string{nil, {"NX"}, {"NEX"}, {"NEX"}}[r.random.IntN(4)]...)
		words = append(words, [][]string{nil, {"PX", "20"}, {"PX", "50"}, {"PX", "3000"}, {"PX", "3000"}}[r.random.IntN(5)]...)
	}
	ts := fmt.Sprintf("%d:0:c", max(r.now.WallMillis+[]int64{0, 0, 0, 1, -500, 20_000, 59_000}[r.random.IntN(7)], 0))
	request := Request{Client: client, Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(strconv.Itoa(r.sent))}
	if token := r.left; r.random.IntN(8) == 0 && !token.IsZero() {
		text := token.String()
		request.FencingToken = &text
	}
	if r.random.IntN(30) == 0 {
		request.Correlation = nil
	}
	r.send(request, verb == "SET")
}

// Invariants 36 and 37: wherever a store crashes, the next one has the state after a whole
// number of groups, and versions above all that were seen, on any wall clock.
func TestInvariant37AStoreRestoredAtAnyGroupEqualsTheEarlierOne(t *testing.T) {
	for name, options := range map[string]Options{
		"default":  {DedupWindow: 8},
		"strict":   {DedupWindow: 8, Strict: true},
		"limits":   {DedupWindow: 3, Strict: true, MaxKeys: 3, MaxBytes: 4000},
		"hold-off": {DedupWindow: 8, HoldOff: time.Second},
	} {
		options.Identity = "the data"
		t.Run(name, func(t *testing.T) {
			commits, free := 0, 0
			for seed := range uint64(60) {
				r := &crashRun{
					world: &world{tb: t, now: Instant{WallMillis: noon}}, random: rand.New(rand.NewPCG(37, seed)),
					options: options, disk: make(disk),
				}
				r.restart(nil)
				for range 400 {
					r.step()
				}
				commits += r.commits
				free += r.free
			}
			if commits < 1000 || free < 1000 {
				t.Errorf("only %d commits, and %d requests without a record", commits, free)
			}
		})
	}
}

// filledDisk returns a disk with a record of each kind, of a strict store.
func filledDisk(t testing.TB) disk {
	t.Helper()
	d := make(disk)
	w := d.world(t, Options{Strict: true, Identity: "the data"})
	ts := "1:0:n"
	for i, words := range [][]string{{"SET", "k", "v"}, {"SET", "lock", "a", "NEX", "PX", "1000"}, {"SET", "fenced", "v"}, {"DEL", "fenced"}} {
		request := Request{Client: "c", Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(strconv.Itoa(i))}
		if words[1] == "fenced" {
			request.FencingToken = &ts
		}
		reply, effects := w.store.Apply(w.now, Parse(request))
		if reply.Err != nil {
			t.Fatalf("%q: %v", words, reply.Err)
		}
		d.write(effects.Groups)
	}
	return d
}

func TestRestoreRefusesWhatItCannotKeep(t *testing.T) {
	without := func(id string) func(disk) {
		return func(d disk) { delete(d, id) }
	}
	with := func(item Item) func(disk) {
		return func(d disk) { d.write([]Group{{item.Record()}}) }
	}
	reply := Item{Kind: KindReply, Client: "c", Sequence: 1, Verb: VerbSet, Outcome: OK, slot: 77, request: fingerprint{correlation: correlate([]byte("x"))}}
	for _, test := range []struct {
		name    string
		options Options
		damage  func(disk)
		cause   string // empty: it is restored
		is      error
	}{
		{"nothing wrong", Options{Strict: true}, func(disk) {}, "", nil},
		{"another identity in the options", Options{Strict: true, Identity: "other"}, func(disk) {}, "", nil},
		{"limits that are too low", Options{Strict: true, MaxKeys: 1, MaxBytes: 1, MaxValue: 1, DedupWindow: 1}, func(disk) {}, "", nil},
		{"a fence, and the store is not strict", Options{}, func(disk) {}, "start the store with Options.Strict", nil},
		{"no fence, and the store is not strict", Options{}, without("kfenced"), "", nil},
		{"no identity", Options{Strict: true}, without("i"), "it has no identity", ErrDamaged},
		{"no bound", Options{Strict: true}, without("b"), "it has no bound", ErrDamaged},
		{"a version above the bound", Options{Strict: true}, with(Item{Kind: KindBound, Version: hlc.Timestamp{Wall: 5}}), "is above the bound", ErrDamaged},
		{"two replies of one sequence", Options{Strict: true}, with(reply), "the sequence 1", ErrDamaged},
		{"a value that is cut short", Options{Strict: true}, func(d disk) { d["kk"] = d["kk"][:9] }, "wrong checksum", ErrDamaged},
		{"a bound without a successor", Options{Strict: true}, with(Item{Kind: KindBound, Version: hlc.Timestamp{Wall: math.MaxInt64, Counter: math.MaxUint64}}),
			"no version is left", ErrDamaged},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := filledDisk(t)
			test.damage(d)
			store, _, err := d.open(test.options, Instant{WallMillis: noon})
			switch {
			case test.cause == "" && err != nil:
				t.Fatal(err)
			case test.cause == "":
				if store.Usage().Keys != 2 || store.Identity() != "the data" {
					t.Errorf("there are %+v, identity %q", store.Usage(), store.Identity())
				}
			case err == nil || !strings.Contains(err.Error(), test.cause) || test.is != nil && !errors.Is(err, test.is):
				t.Errorf("the error is %v; want %q", err, test.cause)
			}
		})
	}
}

// Any records are refused, or give a store that works, and whose snapshot gives the same store.
func FuzzRestore(f *testing.F) {
	appendRecord := func(dst []byte, id, value []byte) []byte {
		dst = append(dst, byte(len(id)), byte(len(value)))
		return append(append(dst, id...), value...)
	}
	var all []byte
	d := filledDisk(f)
	for _, id := range slices.Sorted(maps.Keys(d)) {
		all = appendRecord(all, []byte(id), d[id])
	}
	f.Add(all, true)
	f.Add(all, false)
	f.Fuzz(func(t *testing.T, records []byte, strict bool) {
		store, err := New(Options{Strict: strict, Journaled: true})
		if err != nil {
			t.Fatal(err)
		}
		for len(records) >= 2 {
			id, value := int(records[0]), int(records[1])
			if records = records[2:]; len(records) < id+value || value < sumSize {
				break
			}
			if err := store.Restore(sign(records[:id], slices.Clone(records[id:id+value]))); err != nil {
				return
			}
			records = records[id+value:]
		}
		now := Instant{WallMillis: noon}
		if _, err := store.Restored(now); err != nil {
			return
		}
		was := describe(store)
		copied := make(disk)
		for record := range store.Snapshot() {
			copied[string(record.ID)] = record.Value
		}
		again, _, err := copied.open(Options{Strict: strict}, now)
		if err != nil {
			t.Fatalf("the snapshot is refused: %v", err)
		}
		if got := describe(again); !maps.Equal(got, was) {
			t.Fatalf("the copy has\n%v; want\n%v", got, was)
		}
		r := &crashRun{world: &world{tb: t, store: store, now: now}}
		r.usage()
		store.Begin(now)
		r.pass(time.Hour)
		ts := "1:0:n"
		for _, verb := range []string{"GET", "SET", "DEL"} {
			words := []string{verb, "k", "v"}[:map[string]int{"GET": 2, "SET": 3, "DEL": 2}[verb]]
			store.Apply(r.now, Parse(Request{Client: "c", Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(verb)}))
		}
		for more := true; more; {
			_, more = store.Expire(r.now, 10)
		}
		for _, client := range store.RestoredClients() {
			store.EndSession(client)
		}
		r.usage()
	})
}

func TestRestoreRefusesARecordThatComesTwice(t *testing.T) {
	for id, value := range filledDisk(t) {
		store, err := New(Options{Strict: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Restore(Record{ID: []byte(id), Value: value}); err != nil {
			t.Fatal(err)
		}
		err = store.Restore(Record{ID: []byte(id), Value: value})
		if err == nil && id[0] == idReply {
			_, err = store.Restored(Instant{})
			if err != nil {
				continue // for want of an identity
			}
		}
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("record %q twice: %v", id, err)
		}
	}
}

// A snapshot is what a journal has that kept all groups.
func TestASnapshotRestoresTheSameStore(t *testing.T) {
	d := filledDisk(t)
	w := d.world(t, Options{Strict: true})
	copied := make(disk)
	for record := range w.store.Snapshot() {
		if copied[string(record.ID)] != nil {
			t.Errorf("record %q comes twice", record.ID)
		}
		copied[string(record.ID)] = record.Value
	}
	again, _, err := copied.open(Options{Strict: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(again), describe(w.store); !maps.Equal(got, want) || len(want) != 8 {
		t.Errorf("the copy has\n%v; want\n%v", got, want)
	}
	for range w.store.Snapshot() {
		break // a caller may stop early
	}
}

// A client comes back after its session has ended, and before or while the records of that are removed.
// It gets no reply of the ended session, also after a crash at any time, and loses none of its own.
func TestAClientThatComesBackFindsNoReplyOfAnEndedSession(t *testing.T) {
	const window = 8
	for removed := range window + 2 { // before the client comes back
		for sent := 1; sent <= 2*window; sent++ { // after that
			d := make(disk)
			w := d.world(t, Options{DedupWindow: window})
			send := func(i int) Effects {
				_, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("DEL", "k")), Correlation: []byte(strconv.Itoa(i))}))
				return effects
			}
			set := func(i int) {
				ts := "1:0:n"
				_, effects := w.store.Apply(w.now, Parse(Request{
					Client: "c", Payload: []byte(payload("SET", strconv.Itoa(i), "v")), Timestamp: &ts, Correlation: []byte(strconv.Itoa(i)),
				}))
				d.write(effects.Groups)
			}
			known := func(i int) bool {
				stamp := "1:0:n"
				command := Parse(Request{Client: "c", Payload: []byte(payload("DEL", "k")), Correlation: []byte(strconv.Itoa(i))})
				set := Parse(Request{Client: "c", Payload: []byte(payload("SET", strconv.Itoa(i), "v")), Timestamp: &stamp, Correlation: []byte(strconv.Itoa(i))})
				_, deleted := w.store.sessions.lookup(&command)
				_, wasSet := w.store.sessions.lookup(&set)
				return deleted || wasSet
			}
			check := func(when string) {
				t.Helper()
				for i := range window + 3 {
					if known(i) {
						t.Fatalf("%s, after %d removed records and %d requests: request %d of the ended session has a reply", when, removed, sent, i)
					}
				}
				for i := max(0, sent-window); i < sent; i++ {
					if i%3 > 0 && !known(100+i) {
						t.Fatalf("%s, after %d removed records and %d requests: request %d has no reply", when, removed, sent, i)
					}
				}
			}
			for i := range window + 3 {
				set(i)
			}
			w.store.EndSession("c")
			d.write(w.store.RemoveObsolete(removed))
			for i := range sent {
				if i%3 == 0 {
					send(100 + i) // has no record
				} else {
					set(100 + i)
				}
			}
			check("before a crash")
			w = d.world(t, Options{DedupWindow: window})
			if sent > 1 { // else the second session has no record
				check("after a crash")
			}
			for groups := w.store.RemoveObsolete(3); groups != nil; groups = w.store.RemoveObsolete(3) {
				d.write(groups)
			}
			w = d.world(t, Options{DedupWindow: window})
			if sent > 1 {
				check("after another crash")
			}
			w.store.EndSession("c")
			d.write(w.store.RemoveObsolete(1000))
			for id := range d {
				if id[0] == idReply {
					t.Fatalf("after %d removed records and %d requests: %q is left", removed, sent, id)
				}
			}
		}
	}
}

// A client that always comes back while records of its last session are left has at most as many
// records as two windows.
func TestSessionsThatEndAgainAndAgainLeaveFewRecords(t *testing.T) {
	const window = 16
	d := make(disk)
	w := d.world(t, Options{DedupWindow: window})
	ts := "1:0:n"
	for i := range 100 * window {
		_, effects := w.store.Apply(w.now, Parse(Request{
			Client: "c", Payload: []byte(payload("SET", "k", strconv.Itoa(i))), Timestamp: &ts, Correlation: []byte(strconv.Itoa(i)),
		}))
		d.write(effects.Groups)
		if i%(window/2+3) == 0 {
			w.store.EndSession("c")
			d.write(w.store.RemoveObsolete(1))
		}
		if usage := w.store.Usage(); len(d) > 3+window || usage.DedupEntries+usage.ObsoleteRecords != len(d)-3 {
			t.Fatalf("after %d requests there are %d records; %+v", i+1, len(d), usage)
		}
	}
	if _, _, err := d.open(Options{DedupWindow: window}, w.now); err != nil {
		t.Error(err)
	}
}

// The numbers of sessions end; what a restored store has then is as before there were any.
func TestTheNumbersOfSessionsEnd(t *testing.T) {
	last := &leftover{sequence: 1<<64 - 1<<32}
	if first := last.firstSequence(); first != last.sequence {
		t.Errorf("after the last session the sequence is %d", first)
	}
	first := new(leftover)
	if sessionNumber(first.firstSequence()+1) != 1 {
		t.Errorf("after the first session the sequence is %d", first.firstSequence())
	}
}

// The replies of clients that do not come back must not stay for ever.
func TestASessionThatEndsLeavesNoRecord(t *testing.T) {
	const window = 100
	d := make(disk)
	w := d.world(t, Options{DedupWindow: window})
	send := func(i int, words ...string) {
		ts := "1:0:n"
		reply, effects := w.store.Apply(w.now, Parse(Request{
			Client: "c", Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(strconv.Itoa(i)),
		}))
		if reply.Err != nil {
			t.Fatal(reply.Err)
		}
		d.write(effects.Groups)
	}
	for i := range window + window/2 {
		send(i, "SET", "k", "v") // has a record, also of its reply
	}
	for i := range window {
		send(1000+i, "GET", "k")
		send(2000+i, "VDEL", "k", "other") // replaces it in memory only
	}
	if got := len(d); got != window+3 {
		t.Errorf("there are %d records; want the key, identity, bound and %d replies", got, window)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			// The window of a store with a lower limit takes the place of the larger one.
			w = d.world(t, Options{DedupWindow: 7})
			if got := w.store.Usage().DedupEntries; got != window {
				t.Errorf("%d replies are restored; want %d", got, window)
			}
			if got := w.store.RestoredClients(); !slices.Equal(got, []string{"c"}) {
				t.Errorf("the restored clients are %q", got)
			}
			for i := range 2 * window {
				send(5000+i, "SET", "k", "w")
			}
			if got := w.store.Usage().DedupEntries; got != window || len(d) != window+3 {
				t.Errorf("%d replies, %d records; want the same as before", got, len(d))
			}
		} else if got := w.store.RestoredClients(); got != nil {
			t.Errorf("the restored clients are %q", got)
		}
		ended := maps.Clone(d)
		w.store.EndSession("c")
		w.store.EndSession("c")
		for left := window; left > 0; {
			const limit = MaxGroup + 5
			if got := w.store.Usage().ObsoleteRecords; got != left {
				t.Errorf("%d records are obsolete; want %d", got, left)
			}
			left -= min(limit, left)
			for _, group := range w.store.RemoveObsolete(limit) {
				if len(group) > MaxGroup {
					t.Errorf("a group has %d records", len(group))
				}
				ended.write([]Group{group})
			}
			if len(ended) != left+3 {
				t.Fatalf("%d records are left; want the key, identity, bound, and %d replies", len(ended), left)
			}
		}
		if got := w.store.RestoredClients(); got != nil || w.store.RemoveObsolete(1) != nil || w.store.Usage().ObsoleteRecords != 0 {
			t.Errorf("after the session %q is restored", got)
		}
	}
}

// Invariant 47: hold-off is for data that was lost, and survives a crash in its middle.
func TestInvariant47HoldOffAppliesOnlyWithoutData(t *testing.T) {
	const hold = 10 * time.Second
	d := make(disk)
	granted := func(w *world) bool {
		answer, _ := w.send(ask("SET lock a NEX PX 1000"))
		return strings.HasPrefix(answer, "+OK")
	}
	reserve := func(w *world) {
		if group := w.store.Reserve(w.now); group != nil {
			d.write([]Group{group})
		}
	}
	w := d.world(t, Options{HoldOff: hold})
	w.store.Begin(w.now)
	reserve(w)
	if granted(w) {
		t.Error("a store without data grants a lease in its hold-off")
	}
	w = d.world(t, Options{HoldOff: hold}) // it crashed
	w.store.Begin(w.now)
	if granted(w) {
		t.Error("a store that crashed in its hold-off grants a lease")
	}
	d.world(t, Options{}) // started without it by mistake, and ended before it had granted anything
	w = d.world(t, Options{HoldOff: hold})
	w.store.Begin(w.now)
	if granted(w) {
		t.Error("a store that had granted nothing has no hold-off")
	}
	w.pass(hold)
	reserve(w)
	ts := "1:0:n"
	_, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts}))
	d.write(effects.Groups)
	w = d.world(t, Options{HoldOff: hold})
	w.store.Begin(w.now)
	if !granted(w) {
		t.Error("a store with data has a hold-off")
	}
	fresh := make(disk).world(t, Options{})
	if fresh.store.holding {
		t.Error("a store without a hold-off says that it is not over")
	}
}

// A restored backup has leases that their holders gave up after it, and not those that others got
// then. So in the hold-off an old value in the data grants nothing either.
func TestInvariant47ALeaseInABackupIsNotGrantedAgainDuringHoldOff(t *testing.T) {
	const hold = 10 * time.Second
	d := make(disk)
	w := d.world(t, Options{})
	ts := "1:0:n"
	reply, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("SET", "lock", "a", "NEX", "PX", "10000")), Timestamp: &ts}))
	if reply.Outcome != OK {
		t.Fatal(reply)
	}
	d.write(effects.Groups)
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

// A request that changed nothing has no record, so a store that was restored judges a redelivery
// anew, though it changes something then. docs/durability.md says when that can be.
func TestARequestThatChangedNothingIsJudgedAnewAfterACrash(t *testing.T) {
	d := make(disk)
	w := d.world(t, Options{})
	ts := "1:0:n"
	apply := func(client, correlation string, words ...string) Reply {
		reply, effects := w.store.Apply(w.now, Parse(Request{Client: client, Correlation: []byte(correlation), Timestamp: &ts, Payload: []byte(payload(words...))}))
		d.write(effects.Groups)
		return reply
	}
	if first := apply("a", "1", "DEL", "k"); first.Outcome != NothingThere {
		t.Fatal(first)
	}
	if set := apply("b", "1", "SET", "k", "v"); set.Outcome != OK {
		t.Fatal(set)
	}
	if again := apply("a", "1", "DEL", "k"); again.Outcome != NothingThere {
		t.Errorf("delivered again to the same process: %v", again)
	}
	w = d.world(t, Options{})
	if again := apply("b", "1", "SET", "k", "v"); again.Outcome != OK {
		t.Errorf("delivered again after a crash: %v", again)
	}
	if again := apply("a", "1", "DEL", "k"); again.Outcome != Deleted {
		t.Errorf("a request that changed nothing, delivered again after a crash: %v; the documentation says that it is judged anew", again)
	}
}

// Invariant 32: a restored key ends its whole lifetime after Begin, or after the first command.
func TestInvariant32LifetimesBeginAgain(t *testing.T) {
	for name, begin := range map[string]func(*world){
		"Begin":     func(w *world) { w.store.Begin(w.now) },
		"a command": func(w *world) { w.send(ask("GET other")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := filledDisk(t).world(t, Options{Strict: true})
			w.pass(time.Hour)
			if effects, _ := w.store.Expire(w.now, 10); len(effects.Groups) > 0 {
				t.Error("the key expired before its lifetime began")
			}
			begin(w)
			w.pass(time.Second - 1)
			if answer, _ := w.send(ask("GET lock")); !strings.HasPrefix(answer, "$1") {
				t.Errorf("before the end of the lifetime: %q", answer)
			}
			w.pass(1)
			w.want(ask("GET lock"), "$-1\r\n")
		})
	}
}

// A store with another node keeps the versions that the earlier one issued.
func TestVersionsKeepTheirNode(t *testing.T) {
	d := make(disk)
	w := d.world(t, Options{Node: "first"})
	ts := "1:0:n"
	request := Request{Client: "c", Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts, Correlation: []byte("1")}
	reply, effects := w.store.Apply(w.now, Parse(request))
	d.write(effects.Groups)
	w = d.world(t, Options{Node: "second"})
	w.want(ask("GET k"), "$1\r\nv\r\n@"+reply.Version.String())
	again, _ := w.store.Apply(w.now, Parse(request))
	if again != reply || reply.Version.Node != "first" {
		t.Errorf("delivered again: %v; the first time %v", again, reply)
	}
	if version := w.set(ask("SET k w")); !strings.HasSuffix(version, ":second") || w.compare(version, reply.Version.String()) <= 0 {
		t.Errorf("the next version is %v", version)
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
	w.send(ask("SET k v"))
	for record := range w.store.Snapshot() {
		d.write([]Group{{record}})
	}
	continues(Options{}, true, "with a key")
	d.write([]Group{{Item{Kind: KindIdentity, Identity: "restored", HoldOff: true}.Record()}})
	continues(Options{}, false, "restored from a backup")
	continues(Options{}, true, "restored, and started again")
}
