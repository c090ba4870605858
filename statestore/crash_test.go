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

	"github.com/tenurelock/tenure/hlc"
)

// A crashRun is a store that crashes again and again. What it has written since the latest commit may be lost, from
// any group on; internal/engine explores when replies may leave.
type crashRun struct {
	*world
	random  *rand.Rand
	options Options
	disk    disk
	trace   []string

	groups []Group             // since the latest commit
	states []map[string]string // after each, or nil within a command; the first one is from before
	seen   stamp               // the highest version until the commit
	sent   int
	issued stamp
	latest []delivered          // requests whose replies are remembered, and durable
	open   []delivered          // those since the commit
	fences map[string]hlc.Token // the highest token of each key, in a strict store
	free   int                  // requests that could be known to need no record
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

func (r *crashRun) add(groups []Group) {
	for i, group := range groups {
		if len(group) == 0 || len(group) > MaxGroup {
			r.fatalf("a group has %d records", len(group))
		}
		r.groups, r.states = append(r.groups, group), append(r.states, nil)
		if i == len(groups)-1 {
			r.states[len(r.states)-1] = describe(r.store)
		}
	}
}

func (r *crashRun) send(request Request, issues bool) {
	command := Parse(request)
	command.Willed = command.Verb == VerbSet && r.random.IntN(8) == 0
	mayWrite := r.store.MayWrite(r.now, &command)
	reply, effects := r.store.Apply(r.now, command)
	r.logf("%s %.60q at %d: %v %v, %d groups", request.Client, request.Payload, r.now.WallMillis, reply.Outcome, reply.Version, len(effects.Groups))
	if !mayWrite {
		r.free++
	}
	if !mayWrite && len(effects.Groups) > 0 || len(effects.Keys) < len(effects.Groups) {
		r.fatalf("MayWrite is %t, and there are %d groups about %q", mayWrite, len(effects.Groups), effects.Keys)
	}
	if issues && reply.Outcome == OK {
		if version := stampOf(reply.Version); version.above(r.issued) {
			r.issued = version
		}
		if r.options.Strict && command.token.Compare(r.fences[command.Key]) < 0 {
			r.fatalf("token %v is accepted after %v", command.token, r.fences[command.Key])
		}
	}
	for _, n := range effects.Notifications {
		if len(effects.Groups) == 0 && n.Deleted {
			r.fatalf("the removal of %q has no record", n.Key)
		}
	}
	r.add(effects.Groups)
	if len(effects.Groups) > 0 {
		own := effects.Groups[len(effects.Groups)-1]
		if own[len(own)-1].ID[0] == idReply {
			r.open = append(r.open, delivered{request, reply})
		}
	}
	if group := r.store.Reserve(r.now); group != nil {
		r.add([]Group{group})
	}
	if e := r.store.entries[command.Key]; e != nil && !e.token().IsZero() {
		r.fences[command.Key] = e.token()
	}
	if !r.options.Strict {
		clear(r.fences)
	}
}

func (r *crashRun) commit() {
	r.disk.write(r.groups)
	r.store.Committed(r.store.Bound())
	r.states = r.states[len(r.states)-1:]
	r.groups, r.seen = nil, r.issued
	r.latest = append(r.latest, r.open...)
	r.latest, r.open = r.latest[max(len(r.latest)-20, 0):], nil
	bound, err := Record{ID: []byte{idBound}, Value: r.disk[string(idBound)]}.Decode()
	if err != nil || r.issued.above(stampOf(bound.Version)) {
		r.fatalf("version %v leaves, and the bound is %v, %v", r.issued, bound.Version, err)
	}
}

// crash ends the store when a part of what it has written is durable.
func (r *crashRun) crash() {
	r.tb.Helper()
	n := r.random.IntN(len(r.groups) + 1)
	r.disk.write(r.groups[:n])
	r.logf("crash with %d of %d groups", n, len(r.groups))
	r.restart(r.states[n])
}

// stop ends the store cleanly.
func (r *crashRun) stop() {
	r.tb.Helper()
	if group := r.store.Seal(); group != nil {
		r.add([]Group{group})
	}
	r.commit()
	clock := r.store.versions.clock
	bound, err := Record{ID: []byte{idBound}, Value: r.disk[string(idBound)]}.Decode()
	if err != nil || stampOf(bound.Version) != clock {
		r.fatalf("after a clean stop at %v the bound is %v, %v", clock, bound.Version, err)
	}
	r.logf("stop at %v", clock)
	r.restart(describe(r.store))
}

// restart makes another store on another wall clock. It has the state, unless that is nil.
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
	r.store, r.groups, r.open, r.issued, r.fences = store, nil, nil, r.seen, make(map[string]hlc.Token)
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
	if !fresh && store.Identity() != "the data" {
		r.fatalf("the identity is %q", store.Identity())
	}
	r.usage()
	if r.seen.above(store.versions.clock) {
		r.fatalf("the clock is at %v; %v was seen", store.versions.clock, r.seen)
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
		if (e.lifetime > 0 || e.willed) && (e.place == 0 || e.deadline != want || !e.version.above(r.seen)) {
			r.fatalf("%q ends at %v, now it is %v; its lifetime is %v, willed %t; version %v", e.key, e.deadline, r.now.Elapsed, e.lifetime, e.willed, e.version)
		}
	}
	r.states = []map[string]string{got}
	r.add([]Group{first})
	r.commit()
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
	if limit := r.options.MaxBytes; limit > 0 && got.Bytes > limit || r.options.MaxKeys > 0 && got.Keys+got.Fences > r.options.MaxKeys {
		r.fatalf("a limit is exceeded: %+v", got)
	}
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
	case 2, 3, 4, 5:
		r.commit()
	case 6, 7, 8:
		r.pass(time.Duration(r.random.IntN(60)) * time.Millisecond)
	case 9:
		r.pass(time.Duration(r.random.IntN(15)) * time.Second)
	case 10, 11:
		effects, _ := r.store.Expire(r.now, 1+r.random.IntN(3))
		r.logf("expire: %q", effects.Keys)
		r.add(effects.Groups)
	case 12:
		r.logf("end session %s", client)
		isOf := func(d delivered) bool { return d.request.Client == client }
		r.latest, r.open = slices.DeleteFunc(r.latest, isOf), slices.DeleteFunc(r.open, isOf)
		r.store.EndSession(client)
	case 13, 14:
		if groups := r.store.RemoveObsolete(1 + r.random.IntN(3)); len(groups) > 0 {
			r.logf("remove obsolete records")
			r.add(groups)
		}
	case 15:
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
	if token := r.seen.timestamp(); r.random.IntN(8) == 0 && !token.IsZero() {
		text := token.String()
		request.FencingToken = &text
	}
	if r.random.IntN(30) == 0 {
		request.Correlation = nil
	}
	r.send(request, verb == "SET")
}

// Invariants 15, 23, 36 and 37: wherever a store crashes, the next one has the state after a whole
// number of groups, and versions above all that were seen, on any wall clock. Limits are kept, and fences never go back.
func TestInvariant37AStoreRestoredAtAnyGroupEqualsTheEarlierOne(t *testing.T) {
	for name, options := range map[string]Options{
		"default":  {DedupWindow: 8},
		"strict":   {DedupWindow: 8, Strict: true},
		"limits":   {DedupWindow: 3, Strict: true, MaxKeys: 3, MaxBytes: 4000},
		"hold-off": {DedupWindow: 8, HoldOff: time.Second},
	} {
		options.Identity = "the data"
		t.Run(name, func(t *testing.T) {
			free := 0
			for seed := range uint64(25) {
				r := &crashRun{
					world: &world{tb: t, now: Instant{WallMillis: noon}}, random: rand.New(rand.NewPCG(37, seed)),
					options: options, disk: make(disk),
				}
				r.restart(nil)
				for range 400 {
					r.step()
				}
				free += r.free
			}
			if free < 500 {
				t.Errorf("only %d requests without a record", free)
			}
		})
	}
}
