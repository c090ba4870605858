package statestore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// noon is the time at which a world begins: the time in the example of docs/protocol.md §3.3.
const noon = 1696374425000

// A world is a store and its two clocks.
type world struct {
	tb      testing.TB
	disk    disk // gets the records of deliver; nil: none
	store   *Store
	now     Instant
	dialect Dialect
}

func newWorld(tb testing.TB, options Options) *world {
	tb.Helper()
	store, err := New(options)
	if err != nil {
		tb.Fatal(err)
	}
	return &world{tb: tb, store: store, now: Instant{WallMillis: noon, Elapsed: time.Hour}}
}

// pass lets d pass on both clocks.
func (w *world) pass(d time.Duration) {
	w.now.Elapsed += d
	w.now.WallMillis += d.Milliseconds()
}

// A request is what a test sends. Its words are the elements of the RESP3 array.
type request struct {
	client string // empty: "c"
	words  []string
	ts     string // empty: the store's time of day, node CLIENT, if the verb is SET; "-": none
	ft     string // empty: none
	denied bool   // not authorized
}

// ask returns the request for a line of words that are separated by single spaces.
func ask(line string) request { return request{words: strings.Split(line, " ")} }

func (r request) as(client string) request   { r.client = client; return r }
func (r request) at(ts string) request       { r.ts = ts; return r }
func (r request) fencedBy(ft string) request { r.ft = ft; return r }

// payload encodes words as docs/protocol.md §2.1 says, independently of package resp3.
func payload(words ...string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&text, "$%d\r\n%s\r\n", len(word), word)
	}
	return text.String()
}

// send passes a request through the store and returns its answer: the bytes of the
// reply, and after an @ its version if it has one. The notifications come as lines,
// see [world.lines].
func (w *world) send(r request) (answer string, notifications []string) {
	w.tb.Helper()
	return w.sendPayload(r, payload(r.words...))
}

func (w *world) sendPayload(r request, payload string) (answer string, notifications []string) {
	w.tb.Helper()
	incoming := Request{Client: r.client, Payload: []byte(payload), Dialect: w.dialect}
	if incoming.Client == "" {
		incoming.Client = "c"
	}
	if r.ts == "" && len(r.words) > 0 && strings.EqualFold(r.words[0], "SET") {
		r.ts = strconv.FormatInt(w.now.WallMillis, 10) + ":0:CLIENT"
	}
	if r.ts != "" && r.ts != "-" {
		incoming.Timestamp = &r.ts
	}
	if r.ft != "" {
		incoming.FencingToken = &r.ft
	}
	command := Parse(incoming)
	if string(incoming.Payload) != payload {
		w.tb.Errorf("Parse changed the payload from %q to %q", payload, incoming.Payload)
	}
	if r.denied {
		command = command.Deny()
	}
	reply, sent := w.store.Apply(w.now, command)
	// The network layer may reuse the packet after the reply.
	for i := range incoming.Payload {
		incoming.Payload[i] = '#'
	}
	answer = string(reply.Append(nil))
	if !reply.Version.IsZero() {
		answer += "@" + reply.Version.String()
	}
	return answer, w.lines(sent.Notifications)
}

// lines returns one line for each notification: the client, the key, the bytes of the
// payload, and after an @ the version.
func (w *world) lines(notifications []Notification) []string {
	var lines []string
	for _, n := range notifications {
		lines = append(lines, n.Client+" "+n.Key+" "+string(n.Append(nil))+"@"+n.Version.String())
	}
	return lines
}

// setLine and deleteLine are the lines of [world.lines] in the deployed dialect.
func setLine(client, key, value, version string) string {
	return client + " " + key + " " + payload("NOTIFY", "SET", "VALUE", value) + "@" + version
}

func deleteLine(client, key, version string) string {
	return client + " " + key + " " + payload("NOTIFY", "DELETE") + "@" + version
}

// want sends a request and compares its answer.
func (w *world) want(r request, answer string) {
	w.tb.Helper()
	if got, _ := w.send(r); got != answer {
		w.tb.Errorf("%q with ts %q and ft %q: got %q; want %q", r.words, r.ts, r.ft, got, answer)
	}
}

// checkWatches checks the consistency of the lists of watches.
func (w *world) checkWatches() {
	w.tb.Helper()
	of, count, bytes := &w.store.watches, 0, int64(0)
	watchers := slices.Concat(slices.Collect(maps.Values(of.byClient)), of.leaving)
	for _, by := range watchers {
		sum := int64(0)
		for key, x := range by.keys.All {
			if x.watcher != by || x.watched.key != key || of.byKey[key] != x.watched || x.next.previous != x || x.previous.next != x {
				w.tb.Fatalf("the watch of %q by %q is filed wrongly", key, by.client)
			}
			sum += costOf(key)
		}
		if by.bytes != sum || by.gone != (of.byClient[by.client] != by) || !by.gone && len(by.keys.All) == 0 {
			w.tb.Fatalf("%q has %d watches of %d bytes, counted as %d", by.client, len(by.keys.All), sum, by.bytes)
		}
		count += len(by.keys.All)
		bytes += sum
	}
	listed := 0
	for _, watched := range of.byKey {
		for x := watched.ring.next; x != &watched.ring; x = x.next {
			listed++
		}
	}
	if listed != count || of.count != count || of.bytes != bytes {
		w.tb.Fatalf("%d watches of %d bytes, %d listed by key, counted as %d of %d", count, bytes, listed, of.count, of.bytes)
	}
}

// wantLines compares notifications in their order.
func (w *world) wantLines(what string, got []string, want ...string) {
	w.tb.Helper()
	if len(got) != len(want) {
		w.tb.Errorf("%s notifies %q; want %q", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			w.tb.Errorf("%s notifies as number %d %q; want %q", what, i, got[i], want[i])
		}
	}
}

// set sends a SET that must be applied, and returns its version.
func (w *world) set(r request) string {
	w.tb.Helper()
	answer, _ := w.send(r)
	version, ok := strings.CutPrefix(answer, "+OK\r\n@")
	if !ok {
		w.tb.Fatalf("%q with ts %q and ft %q: got %q; want +OK and a version", r.words, r.ts, r.ft, answer)
	}
	return version
}

// compare orders two versions.
func (w *world) compare(a, b string) int {
	w.tb.Helper()
	x, err := hlc.Parse(a)
	if err != nil {
		w.tb.Fatal(err)
	}
	y, err := hlc.Parse(b)
	if err != nil {
		w.tb.Fatal(err)
	}
	return x.Compare(y)
}

// refusal returns the answer for one of the texts of docs/protocol.md §2.4, at noon.
func refusal(text string) string { return refusalAt(text, noon) }

// refusalAt does the same for a store with a clock that reads wall: some refusals have that as their
// version.
func refusalAt(text string, wall int64) string {
	answer := "-ERR " + text + "\r\n"
	if text == textTimestampAhead || text == textTokenAhead {
		answer += fmt.Sprintf("@%d:0:StateStore", wall)
	}
	return answer
}

// The texts of docs/protocol.md §2.4, spelled out: the tests compare bytes on the wire.
const (
	textTimestampAhead = "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	textTokenRequired  = "a fencing token is required for this request"
	textTokenAhead     = "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	textTokenLower     = "the request fencing token is a lower version than the fencing token protecting the resource"
	textQuota          = "the quota has been exceeded"
	textSyntax         = "syntax error"
	textDenied         = "not authorized"
	textUnknown        = "unknown command"
	textArguments      = "wrong number of arguments"
	textNoTimestamp    = "missing timestamp"
	textBadTimestamp   = "malformed timestamp"
	textNoKey          = "the key length is zero"
)

// A disk has the records that a journal keeps, by their IDs.
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
	return d.openAfter(options, now, Former{})
}

func (d disk) openAfter(options Options, now Instant, former Former) (*Store, Group, error) {
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
	first, err := store.Restored(now, former)
	return store, first, err
}

// world returns a world whose store has the records of d. Its first group is durable.
func (d disk) world(tb testing.TB, options Options) *world {
	tb.Helper()
	return d.worldAfter(tb, options, Former{})
}

// worldAfter is world with what is known of the store before.
func (d disk) worldAfter(tb testing.TB, options Options, former Former) *world {
	tb.Helper()
	w := &world{tb: tb, disk: d, now: Instant{WallMillis: noon, Elapsed: time.Hour}}
	store, first, err := d.openAfter(options, w.now, former)
	if err != nil {
		tb.Fatal(err)
	}
	w.store = store
	d.write([]Group{first})
	store.Committed(store.Bound())
	return w
}

// describe returns a line for each piece of the state that survives a restart: everything except
// the replies, the expiry times, and the versions of keys with a lifetime or a Will.
func describe(s *Store) map[string]string {
	lines := map[string]string{"identity": fmt.Sprintf("%q %t", s.options.Identity, s.holding)}
	for _, e := range s.entries {
		version := e.version.timestamp().String()
		if e.lifetime > 0 || e.willed {
			version = "a version"
		}
		lines["key "+e.key] = fmt.Sprintf("%q %s token %v lifetime %v willed %t", e.value, version, e.token(), e.lifetime, e.willed)
		if l := e.lease; l != nil {
			lines["lease "+e.key] = fmt.Sprint(l.since) // the holder that has renewed it last is not kept
		}
	}
	for _, c := range s.leases.history {
		lines[fmt.Sprintf("change %d", c.slot)] = fmt.Sprintf("%d %+v of %s", c.sequence, c.HolderChange, c.by.client)
	}
	for key, fence := range s.fences {
		lines["fence "+key] = fence.String()
	}
	return lines
}

// filledDisk returns a disk with a record of each kind, of a strict store.
func filledDisk(t testing.TB) disk {
	t.Helper()
	d := make(disk)
	w := d.world(t, Options{Strict: true, Identity: "the data"})
	ts := "1:0:n"
	for i, words := range [][]string{{"SET", "k", "v"}, {"SET", "lock", "a", "NEX", "PX", "1000"}, {"SET", "fenced", "v"}, {"DEL", "fenced"}} {
		request := Request{Client: "c", Payload: []byte(payload(words...)), Timestamp: &ts, Delivery: Redelivery, Correlation: []byte(strconv.Itoa(i))}
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

// setWilled sets a lease of a client whose connection has a Will that deletes it, or has none.
func (d disk) setWilled(w *world, willed bool, words ...string) {
	w.tb.Helper()
	ts := "1:0:n"
	command := Parse(Request{Client: "c", Payload: []byte(payload(append([]string{"SET"}, words...)...)), Timestamp: &ts})
	command.Willed = willed
	mayWrite := w.store.MayWrite(w.now, &command)
	reply, effects := w.store.Apply(w.now, command)
	if reply.Outcome != OK || len(effects.Groups) > 0 != mayWrite {
		w.tb.Fatalf("%q: %v with %d groups, MayWrite %t", words, reply.Err, len(effects.Groups), mayWrite)
	}
	d.write(effects.Groups)
}
