package statestore

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
)

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
	reply, effects := w.store.Apply(w.now, Parse(Request{
		Client: client, Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(correlation), Delivery: Redelivery,
	}))
	w.disk.write(effects.Groups)
	return reply, len(effects.Notifications)
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
			w.store.Disconnect(w.now, "c", math.MaxInt)
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

// Invariant 23: a client may use correlation data again while the request that had it first can still be delivered
// again. That is not applied over what came later, also by a store that was restored.
func TestInvariant23ARedeliveryWhoseCorrelationDataWasUsedAgainIsNotAppliedAgain(t *testing.T) {
	d := make(disk)
	w := d.world(t, Options{})
	first, _ := w.deliver("c", "1", "SET", "k", "first")
	later, _ := w.deliver("c", "1", "SET", "k", "later")
	deleted, _ := w.deliver("c", "1", "DEL", "other")
	want := func(when string) {
		t.Helper()
		for _, sent := range []struct {
			words []string
			reply Reply
		}{{[]string{"SET", "k", "first"}, first}, {[]string{"SET", "k", "later"}, later}, {[]string{"SET", "k", "first"}, first}} {
			if again, notified := w.deliver("c", "1", sent.words...); again != asSent(sent.reply) || notified > 0 {
				t.Errorf("%s: %q delivered again: %v; the first time %v", when, sent.words, again, sent.reply)
			}
		}
		if got := w.store.entries["k"].value; got != "later" {
			t.Errorf("%s: the key has %q", when, got)
		}
	}
	want("at once")
	if again, _ := w.deliver("c", "1", "DEL", "other"); again != asSent(deleted) {
		t.Errorf("DEL delivered again: %v; the first time %v", again, deleted)
	}
	w = d.world(t, Options{})
	want("after a crash")
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

// wantCountedMemory checks that the only client has so many requests, and that they take no more memory
// than Usage counts.
func (w *world) wantCountedMemory(requests int) {
	w.tb.Helper()
	session := w.store.sessions.byClient["c"]
	bytes := cap(session.ring)*int(unsafe.Sizeof(dedupEntry{})) + cap(session.chains)*4
	if counted := w.store.Usage().DedupBytes; int64(bytes) > counted || len(session.ring) != requests {
		w.tb.Fatalf("%d requests, want %d, take %d bytes, and count as %d", len(session.ring), requests, bytes, counted)
	}
}

// A request that changed nothing has no record, so a store that was restored judges a redelivery
// anew, though it changes something then. docs/operate.md says when that can be.
func TestARequestThatChangedNothingIsJudgedAnewAfterACrash(t *testing.T) {
	d := make(disk)
	w := d.world(t, Options{})
	want := func(client string, outcome Outcome, words ...string) {
		t.Helper()
		if got, _ := w.deliver(client, "1", words...); got.Outcome != outcome {
			t.Errorf("%q: %v, want %v", words, got.Outcome, outcome)
		}
	}
	want("a", NothingThere, "DEL", "k")
	want("b", OK, "SET", "k", "v")
	want("a", NothingThere, "DEL", "k") // delivered again to the same process
	w = d.world(t, Options{})
	want("b", OK, "SET", "k", "v")
	want("a", Deleted, "DEL", "k")
}

// The replies of clients that do not come back must not stay for ever. A client that does, before or while the records of
// its session are removed, gets no reply of that session, also after a crash, and loses none of its own.
func TestASessionThatEndsLeavesNoReply(t *testing.T) {
	const window = 8
	for removed := range window + 2 { // before the client comes back
		for sent := 1; sent <= 2*window; sent++ { // after that
			d := make(disk)
			w := d.world(t, Options{DedupWindow: window})
			send := func(first, count int) {
				for i := first; i < first+count; i++ {
					if w.deliver("c", strconv.Itoa(i), "SET", strconv.Itoa(i), "v"); i%3 == 1 { // has no record, and replaces one in memory
						w.deliver("c", "none "+strconv.Itoa(i), "DEL", "none")
					}
				}
			}
			check := func(when string) {
				t.Helper()
				for i, session := range []int{0, 100} {
					known := 0
					for n := session; n < session+3*window; n++ {
						ts := "1:0:n"
						command := Parse(Request{Client: "c", Payload: []byte(payload("SET", strconv.Itoa(n), "v")), Timestamp: &ts, Correlation: []byte(strconv.Itoa(n)), Delivery: Redelivery})
						if _, is := w.store.lookup(w.now, &command); is {
							known++
						}
					}
					if i == 0 && known > 0 || i == 1 && known < min(sent, window/2) {
						t.Fatalf("%s, after %d removed records and %d requests: %d requests from %d on have a reply", when, removed, sent, known, session)
					}
				}
			}
			send(0, window+3)
			w.store.EndSession("c")
			d.write(w.store.RemoveObsolete(removed))
			send(100, sent)
			check("before a crash")
			for range 2 {
				w = d.world(t, Options{DedupWindow: window})
				check("after a crash")
				if got := w.store.RestoredClients(); !slices.Equal(got, []string{"c"}) {
					t.Fatalf("the restored clients are %q", got)
				}
				d.write(w.store.RemoveObsolete(3))
			}
			w.store.EndSession("c")
			for _, group := range w.store.RemoveObsolete(1000) {
				if len(group) > MaxGroup {
					t.Errorf("a group has %d records", len(group))
				}
				d.write([]Group{group})
			}
			for id := range d {
				if id[0] == idReply {
					t.Fatalf("after %d removed records and %d requests: %q is left", removed, sent, id)
				}
			}
			if got := w.store.Usage().ObsoleteRecords; got != 0 || w.store.RestoredClients() != nil || w.store.RemoveObsolete(1) != nil {
				t.Fatalf("%d records are obsolete", got)
			}
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
			w.store.Disconnect(w.now, "c", math.MaxInt)
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
