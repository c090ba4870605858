package statestore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A crashRun is a store that crashes again and again, as an engine and a journal run it: replies
// and notifications leave only after the commit that they rest on.
type crashRun struct {
	*world
	random  *rand.Rand
	options Options
	disk    disk
	trace   []string

	open, committing batch
	bound            Bound // of the batch that is being committed
	underWay         bool

	left    stamp // the highest version that left
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
	held   []stamp
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

func (r *crashRun) leave(version stamp) {
	bound, err := Record{ID: []byte{idBound}, Value: r.disk[string(idBound)]}.Decode()
	if err != nil || version.above(stampOf(bound.Version)) {
		r.fatalf("version %v leaves, and the bound is %v, %v", version, bound.Version, err)
	}
	if version.above(r.left) {
		r.left = version
	}
}

// send sends a request as an engine does.
func (r *crashRun) send(request Request, issues bool) {
	command := Parse(request)
	command.Willed = command.Verb == VerbSet && r.random.IntN(8) == 0
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
	issued := stamp{}
	if issues && reply.Err == nil && reply.Outcome != Refused {
		issued = stampOf(reply.Version)
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
		if issues && reply.Outcome == OK && !issued.above(r.left) {
			r.fatalf("version %v leaves at once, and %v was seen", issued, r.left)
		}
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
	if err != nil || stampOf(bound.Version) != clock {
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
			_, found := r.store.lookup(r.now, &command)
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
		if state != nil && state[line] == "" {
			r.fatalf("there is %s: %s", line, got[line])
		}
	}
	r.states = []map[string]string{got}
	if !fresh && store.Identity() != "the data" {
		r.fatalf("the identity is %q", store.Identity())
	}
	r.usage()
	for _, e := range store.entries {
		if e.lifetime > 0 && !e.version.above(r.left) {
			r.fatalf("%q has version %v; %v was seen", e.key, e.version, r.left)
		}
	}
	if r.left.above(store.versions.clock) {
		r.fatalf("the clock is at %v; %v was seen", store.versions.clock, r.left)
	}
	for _, sent := range r.latest {
		if reply, effects := r.store.Apply(r.now, Parse(sent.request)); reply != asSent(sent.reply) || len(effects.Groups)+len(effects.Notifications) > 0 {
			r.fatalf("%q delivered again: %v; the first time %v", sent.request.Payload, reply, sent.reply)
		}
	}
	r.latest = nil
	for _, e := range store.entries {
		want := r.now.Elapsed + e.lifetime
		if e.willed {
			want = r.now.Elapsed
		}
		if (e.lifetime > 0 || e.willed) && (e.place == 0 || e.deadline != want) {
			r.fatalf("%q ends at %v, now it is %v; its lifetime is %v, willed %t", e.key, e.deadline, r.now.Elapsed, e.lifetime, e.willed)
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
	for key, token := range r.store.fences {
		want.Fences++
		want.Bytes += int64(len(key)) + tokenSize(token)
	}
	for _, session := range r.store.sessions.byClient {
		want.DedupEntries += len(session.ring)
	}
	got := r.store.Usage()
	want.ObsoleteRecords = len(r.store.sessions.obsolete)
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
		r.store.Disconnect(r.now, client, math.MaxInt)
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
	request := Request{Client: client, Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(strconv.Itoa(r.sent)), Delivery: Redelivery}
	if token := r.left.timestamp(); r.random.IntN(8) == 0 && !token.IsZero() {
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
			for seed := range uint64(25) {
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
			if commits < 500 || free < 500 {
				t.Errorf("only %d commits, and %d requests without a record", commits, free)
			}
		})
	}
}
