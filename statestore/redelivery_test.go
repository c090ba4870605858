package statestore

import (
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestTheChecksumOfAStringEqualsTheChecksumOfItsBytes(t *testing.T) {
	for _, text := range []string{"", "\x00", "1696374425000:0:CLIENT", "\xff\x00 any bytes"} {
		for _, sum := range []uint32{0, 1, 1<<32 - 1} {
			if got, want := updateSum(sum, text), crc32.Update(sum, castagnoli, []byte(text)); got != want {
				t.Errorf("updateSum(%#x, %q) = %#x; want %#x", sum, text, got, want)
			}
		}
	}
}

// A renewal copies the key, by which it is looked up.
func TestARenewalAllocatesLittle(t *testing.T) {
	store, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	payload := []byte("*6\r\n$3\r\nset\r\n$4\r\nlock\r\n$6\r\np:0001\r\n$3\r\nnex\r\n$2\r\npx\r\n$5\r\n10000\r\n")
	timestamp, correlation := "1696374425000:0:p", make([]byte, 16)
	renew := func() {
		correlation[0]++
		command := Parse(Request{Client: "p", Payload: payload, Delivery: Redelivery, Correlation: correlation, Timestamp: &timestamp})
		if reply, _ := store.Apply(Instant{WallMillis: 1696374425000}, command); reply.Outcome != OK {
			t.Fatal(reply)
		}
	}
	for range 2 * DefaultDedupWindow {
		renew()
	}
	if got := testing.AllocsPerRun(1000, renew); got > 1 {
		t.Errorf("a renewal allocates %v times; want 1", got)
	}
}

// deliver sends a request that may be delivered again.
func (w *world) deliver(client, correlation string, words ...string) (reply Reply, notified int) {
	ts := "1:0:n"
	reply, notifications := w.store.Apply(w.now, Parse(Request{
		Client: client, Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(correlation), Delivery: Redelivery,
	}))
	return reply, len(notifications.Notifications)
}

// Invariant 23: the store distinguishes correlation data of any length, whichever byte differs.
func TestInvariant23CorrelationDataOfAnyLengthIsDistinguished(t *testing.T) {
	long := strings.Repeat("x", 1<<16-2)
	all := []string{"\x00", "\x00\x00", "a", "a\x00", long, long + "x", long + "y", "y" + long}
	for _, length := range []int{15, 16, 17, 36} {
		all = append(all, strings.Repeat("x", length), strings.Repeat("x", length-1)+"y", "y"+strings.Repeat("x", length-1))
	}
	sum := sha256.Sum256([]byte(long)) // as data it differs from the hash of the long one
	all = append(all, string(sum[:16]))
	w := newWorld(t, Options{})
	replies := make(map[string]Reply)
	for _, correlation := range all {
		reply, _ := w.deliver("c", correlation, "SET", "k", "v")
		for other, earlier := range replies {
			if reply.Version == earlier.Version {
				t.Fatalf("%.20q is taken for %.20q", correlation, other)
			}
		}
		replies[correlation] = reply
	}
	for _, correlation := range all {
		if again, _ := w.deliver("c", correlation, "SET", "k", "v"); again != asSent(replies[correlation]) {
			t.Errorf("%.20q delivered again: %v; the first time %v", correlation, again, replies[correlation])
		}
	}
}

// Invariant 23: the store recognizes redeliveries of exactly the last requests, even if a client
// reuses correlation data or loses its connection meanwhile.
func TestInvariant23TheLastRequestsAreRecognized(t *testing.T) {
	const window = 4
	for name, middle := range map[string]func(*world){
		"others": func(w *world) { w.deliver("c", "other", "SET", "k", "v") },
		"the same data with other content": func(w *world) {
			w.deliver("c", "first", "SET", "k", "first")
			w.deliver("c", "again", "SET", "k", "v")
			w.deliver("c", "again", "SET", "k", "w")
		},
		"a watch that is begun again": func(w *world) {
			w.deliver("c", "watch", "KEYNOTIFY", "k")
			w.store.Disconnect("c")
			w.deliver("c", "watch", "KEYNOTIFY", "k")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{DedupWindow: window})
			w.deliver("c", "before", "SET", "k", "v")
			middle(w)
			var first [window]Reply
			for i := range first {
				first[i], _ = w.deliver("c", strconv.Itoa(i), "SET", "k", "v")
			}
			for i := range first {
				if again, _ := w.deliver("c", strconv.Itoa(i), "SET", "k", "v"); again != first[i] {
					t.Errorf("request %d delivered again: %v; the first time %v", i, again, first[i])
				}
			}
			if got := w.store.Usage().DedupEntries; got != window {
				t.Errorf("the window has %d requests; want %d", got, window)
			}
		})
	}
}

// MaxClients of a server is derived from this.
func TestARememberedRequestTakesAsMuchMemoryAsIsCounted(t *testing.T) {
	for _, window := range []int{1, DefaultDedupWindow, DefaultDedupWindow + 1, 1000} {
		w := newWorld(t, Options{DedupWindow: window})
		for n := 1; n <= window; n++ {
			w.deliver("c", strconv.Itoa(n), "DEL", "k")
			w.wantCountedMemory(n)
		}
	}
}

// The journal has the replies of the session before, too, until they are removed.
func TestARestoredReplyTakesAsMuchMemoryAsIsCounted(t *testing.T) {
	for _, test := range []struct{ before, latest int }{{0, 1}, {0, 100}, {99, 1}, {100, 7}, {100, 50}, {50, 100}} {
		d, ts := make(disk), "1:0:n"
		w := d.world(t, Options{DedupWindow: 100})
		set := func(i int) {
			_, effects := w.store.Apply(w.now, Parse(Request{
				Client: "c", Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts, Delivery: Redelivery, Correlation: []byte(strconv.Itoa(i)),
			}))
			d.write(effects.Groups)
		}
		for i := range test.before {
			set(i)
		}
		w.store.EndSession("c")
		for i := range test.latest {
			set(1000 + i)
		}
		w = d.world(t, Options{DedupWindow: 100})
		w.wantCountedMemory(test.latest)
		for n := test.latest + 1; n <= 100; n++ {
			set(1000 + n)
			w.wantCountedMemory(n)
		}
	}
}

// wantCountedMemory checks that the only client has so many requests, and that they take no more memory
// than Usage counts.
func (w *world) wantCountedMemory(requests int) {
	w.tb.Helper()
	session := w.store.sessions.byClient["c"]
	bytes := cap(session.ring)*int(unsafe.Sizeof(dedupEntry{})) + cap(session.positions.slots)*4
	if counted := w.store.Usage().DedupBytes; int64(bytes) > counted || len(session.ring) != requests {
		w.tb.Fatalf("%d requests, want %d, take %d bytes, and count as %d", len(session.ring), requests, bytes, counted)
	}
}

// A request that changed nothing has no record, so a store that was restored judges a redelivery
// anew, though it changes something then. docs/operate.md says when that can be.
func TestARequestThatChangedNothingIsJudgedAnewAfterACrash(t *testing.T) {
	d := make(disk)
	w := d.world(t, Options{})
	ts := "1:0:n"
	apply := func(client, correlation string, words ...string) Reply {
		reply, effects := w.store.Apply(w.now, Parse(Request{Client: client, Correlation: []byte(correlation), Delivery: Redelivery, Timestamp: &ts, Payload: []byte(payload(words...))}))
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

// A client comes back after its session has ended, before or while its records are removed.
// It gets no reply of the ended session, also after a crash at any time, and loses none of its own.
func TestAClientThatComesBackFindsNoReplyOfAnEndedSession(t *testing.T) {
	const window = 8
	for removed := range window + 2 { // before the client comes back
		for sent := 1; sent <= 2*window; sent++ { // after that
			d := make(disk)
			w := d.world(t, Options{DedupWindow: window})
			send := func(i int) Effects {
				_, effects := w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("DEL", "k")), Delivery: Redelivery, Correlation: []byte(strconv.Itoa(i))}))
				return effects
			}
			set := func(i int) {
				ts := "1:0:n"
				_, effects := w.store.Apply(w.now, Parse(Request{
					Client: "c", Payload: []byte(payload("SET", strconv.Itoa(i), "v")), Timestamp: &ts, Delivery: Redelivery, Correlation: []byte(strconv.Itoa(i)),
				}))
				d.write(effects.Groups)
			}
			known := func(i int) bool {
				stamp := "1:0:n"
				command := Parse(Request{Client: "c", Payload: []byte(payload("DEL", "k")), Correlation: []byte(strconv.Itoa(i)), Delivery: Redelivery})
				set := Parse(Request{Client: "c", Payload: []byte(payload("SET", strconv.Itoa(i), "v")), Timestamp: &stamp, Correlation: []byte(strconv.Itoa(i)), Delivery: Redelivery})
				_, deleted := w.store.lookup(w.now, &command)
				_, wasSet := w.store.lookup(w.now, &set)
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

// The replies of clients that do not come back must not stay for ever.
func TestASessionThatEndsLeavesNoRecord(t *testing.T) {
	const window = 100
	d := make(disk)
	w := d.world(t, Options{DedupWindow: window})
	send := func(i int, words ...string) {
		ts := "1:0:n"
		reply, effects := w.store.Apply(w.now, Parse(Request{
			Client: "c", Payload: []byte(payload(words...)), Timestamp: &ts, Delivery: Redelivery, Correlation: []byte(strconv.Itoa(i)),
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

// docs/protocol.md §7.2: what MQTT calls a first delivery is executed, also with the bytes and the
// correlation data of an earlier request.
func TestANewRequestIsExecutedWhateverItLooksLike(t *testing.T) {
	w := newWorld(t, Options{})
	do := func(delivery Delivery, packetID uint16, words ...string) string {
		ts := "1:0:n"
		reply, effects := w.store.Apply(w.now, Parse(Request{
			Client: words[0], Payload: []byte(payload(words[1:]...)), Timestamp: &ts,
			Correlation: []byte("always the same"), Delivery: delivery, PacketID: packetID,
		}))
		return fmt.Sprintf("%s, %d notified", strings.TrimSpace(string(reply.Append(nil))), len(effects.Notifications))
	}
	for _, step := range []struct {
		what     string
		delivery Delivery
		packetID uint16
		words    string
		pass     time.Duration
		want     string
	}{
		{"", FirstDelivery, 1, "other SET job v", 0, "+OK, 0 notified"},
		{"", FirstDelivery, 1, "c DEL job", 0, ":1, 0 notified"},
		{"", FirstDelivery, 2, "other SET job w", 0, "+OK, 0 notified"},
		{"the bytes of the first DEL, but a new request", FirstDelivery, 1, "c DEL job", 0, ":1, 0 notified"},
		{"it was executed", FirstDelivery, 2, "other GET job", 0, "$-1, 0 notified"},
		{"", FirstDelivery, 3, "other SET job x", 0, "+OK, 0 notified"},
		{"delivered again", Redelivery, 1, "c DEL job", time.Hour, ":1, 0 notified"},
		{"DUP, but with another packet id", Redelivery, 9, "c DEL job", 0, ":1, 0 notified"},
		{"so it is gone now", FirstDelivery, 10, "c GET job", 0, "$-1, 0 notified"},

		{"a VDEL", FirstDelivery, 4, "other SET job v", 0, "+OK, 0 notified"},
		{"", FirstDelivery, 4, "c VDEL job v", 0, ":1, 0 notified"},
		{"", FirstDelivery, 5, "other SET job v", 0, "+OK, 0 notified"},
		{"a new VDEL with its bytes", FirstDelivery, 4, "c VDEL job v", 0, ":1, 0 notified"},
		{"it was executed", FirstDelivery, 6, "other GET job", 0, "$-1, 0 notified"},

		{"a watch", FirstDelivery, 6, "c KEYNOTIFY job", 0, "+OK, 0 notified"},
		{"", FirstDelivery, 7, "c KEYNOTIFY job STOP", 0, "+OK, 0 notified"},
		{"", FirstDelivery, 6, "c KEYNOTIFY job", 0, "+OK, 0 notified"},
		{"", FirstDelivery, 7, "c KEYNOTIFY job STOP", 0, "+OK, 0 notified"},
		{"it has ended", FirstDelivery, 8, "other SET job v", 0, "+OK, 0 notified"},

		{"before a lost connection", FirstDelivery, 20, "c DEL job", 0, ":1, 0 notified"},
		{"", FirstDelivery, 21, "other SET job v", 0, "+OK, 0 notified"},
		{words: "reconnect"},
		{"some clients deliver again without DUP", FirstDelivery, 33, "c DEL job", 0, ":1, 0 notified"},
		{"", FirstDelivery, 0, "other GET job", 0, "$1\r\nv, 0 notified"},
		{"so late it is a new one", FirstDelivery, 33, "c DEL job", RedeliveryWindow + 2*time.Second, ":1, 0 notified"},
		{"", FirstDelivery, 0, "other GET job", 0, "$-1, 0 notified"},
		{"", FirstDelivery, 21, "other SET job v", 0, "+OK, 0 notified"},

		{"behind a broker", UnknownDelivery, 0, "c DEL job", 900 * time.Millisecond, ":1, 0 notified"},
		{"", UnknownDelivery, 0, "other SET job v", 0, "+OK, 0 notified"},
		{"it may have been delivered again", UnknownDelivery, 0, "c DEL job", RedeliveryWindow, ":1, 0 notified"},
		{"", FirstDelivery, 0, "c GET job", 0, "$1\r\nv, 0 notified"},
		{"so late it is a new one", UnknownDelivery, 0, "c DEL job", time.Second, ":1, 0 notified"},
		{"", FirstDelivery, 0, "c GET job", 0, "$-1, 0 notified"},
	} {
		w.pass(step.pass)
		if step.words == "reconnect" {
			w.store.Disconnect("c")
			continue
		}
		if got := do(step.delivery, step.packetID, strings.Fields(step.words)...); got != step.want {
			t.Errorf("%s (%s): %q; want %q", step.words, step.what, got, step.want)
		}
	}
}

// asSent returns a reply without what its client does not see.
func asSent(reply Reply) Reply {
	reply.Forced = nil
	return reply
}

// The positions in a ring agree with a map, whatever requests come, and however many have the same
// correlation data.
func TestPositionsAgreeWithAMap(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(61, seed))
		window, different := 1+random.IntN(100), 1+random.IntN(150)
		hashes := maphash.MakeSeed()
		var ring []dedupEntry
		var tested positions
		model := make(map[correlation]int)
		for request := range 2000 {
			entry := dedupEntry{fingerprint: fingerprint{correlation: correlate([]byte(strconv.Itoa(random.IntN(different))))}}
			position := len(ring)
			if position < window {
				ring = append(ring, entry)
			} else {
				position = request % window
				tested.remove(ring, hashes, position)
				if oldest := ring[position].correlation; model[oldest] == position {
					delete(model, oldest)
				}
				ring[position] = entry
			}
			tested.set(ring, hashes, position)
			model[entry.correlation] = position
			for n := range different {
				asked := correlate([]byte(strconv.Itoa(n)))
				want, known := model[asked]
				if got, ok := tested.find(ring, hashes, &asked); ok != known || ok && got != want {
					t.Fatalf("window %d, request %d: %q is at %d, %t; want %d, %t", window, request, asked.data, got, ok, want, known)
				}
			}
			if tested.count != len(model) || 2*tested.count > len(tested.slots) {
				t.Fatalf("%d positions are counted, there are %d; %d slots", tested.count, len(model), len(tested.slots))
			}
		}
	}
}
