package statestore

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

func TestMaxKeys(t *testing.T) {
	w := newWorld(t, Options{MaxKeys: 2})
	full := func(key string) {
		t.Helper()
		w.want(ask("SET "+key+" v"), refusal(textQuota))
		w.want(ask("SET "+key+" v NX"), refusal(textQuota))
		w.want(ask("SET "+key+" v NEX PX 5"), refusal(textQuota))
		w.want(ask("GET "+key), "$-1\r\n")
	}
	w.set(ask("SET a v"))
	w.set(ask("SET b v PX 1000"))
	full("c")
	w.set(ask("SET a a-much-longer-value"))
	w.want(ask("DEL c"), ":0\r\n")
	w.want(ask("KEYNOTIFY c"), "+OK\r\n") // a watch is not a key
	full("c")
	w.send(ask("DEL a"))
	w.set(ask("SET c v"))
	full("a")
	w.pass(time.Second)
	w.store.Expire(w.now, 1)
	w.set(ask("SET a v"))
	full("b")
	w.send(ask("VDEL a v"))
	w.set(ask("SET b v"))
	full("a")
}

// MaxBytes counts the lengths of keys, values and tokens, and nothing else, after every kind of change. Each
// step ends in a store with room for that many bytes.
func TestMaxBytesAccounting(t *testing.T) {
	const limit = 100
	steps := []struct {
		name string
		do   func(*world)
		used int
	}{
		{"an empty store", func(*world) {}, 0},
		{"a SET counts key and value", func(w *world) { w.set(ask("SET key value")) }, 8},
		{"the same SET again counts once", func(w *world) { w.set(ask("SET key value")) }, 8},
		{"a longer value", func(w *world) { w.set(ask("SET key longer-value")) }, 15},
		{"a shorter value", func(w *world) { w.set(ask("SET key v")) }, 4},
		{"an empty value", func(w *world) { w.set(ask("SET key ")) }, 3},
		{"an expiry costs nothing", func(w *world) { w.set(ask("SET key  PX 1000")) }, 3},
		{"nor does a watch", func(w *world) { w.send(ask("KEYNOTIFY key")) }, 3},
		{"a token counts as its node and 16 bytes", func(w *world) { w.set(ask("SET key  PX 1000").fencedBy("1:0:n")) }, 20},
		{"a longer token", func(w *world) { w.set(ask("SET key  PX 1000").fencedBy("2:0:node")) }, 23},
		{"a shorter token", func(w *world) { w.set(ask("SET key  PX 1000").fencedBy("3:0:n")) }, 20},
		{"a lower token", func(w *world) { w.send(ask("SET key  PX 1000").fencedBy("2:0:node")) }, 20},
		{"another key", func(w *world) { w.set(ask("SET other value PX 2000")) }, 30},
		{"a refused SET", func(w *world) { w.send(ask("SET other longer-value NX")) }, 30},
		{"a VDEL of another value", func(w *world) { w.send(ask("VDEL other w")) }, 30},
		{"a renewal", func(w *world) { w.set(ask("SET other value NEX PX 2000")) }, 30},
		{"expiry by Expire", func(w *world) { w.pass(time.Second); w.store.Expire(w.now, 10) }, 10},
		{"expiry by GET", func(w *world) { w.pass(time.Second); w.want(ask("GET other"), "$-1\r\n") }, 0},
		{"a new key", func(w *world) { w.set(ask("SET a 1234 PX 1000")) }, 5},
		{"expiry by a SET of the same key", func(w *world) { w.pass(time.Second); w.set(ask("SET a 12")) }, 3},
		{"DEL", func(w *world) { w.send(ask("DEL a")) }, 0},
		{"VDEL", func(w *world) { w.set(ask("SET a 12")); w.send(ask("VDEL a 12")) }, 0},
	}
	w := newWorld(t, Options{MaxBytes: limit})
	for _, step := range steps {
		step.do(w)
		// A SET that fills the store to the last byte succeeds, one byte more does not.
		probe := func(length int) request {
			return request{words: []string{"SET", "p", string(make([]byte, length))}, ts: "1:0:n"}
		}
		room := limit - step.used - len("p")
		w.want(probe(room+1), refusal(textQuota))
		w.set(probe(room))
		w.send(ask("DEL p"))
		if t.Failed() {
			t.Fatalf("%s: there should be %d bytes in use", step.name, step.used)
		}
	}
}

// A client chooses the node of a token, up to 983 bytes, and memory and journal have it with each key. So
// MaxBytes bounds it, whichever request brings it.
func TestMaxBytesBoundsTheTokensOfKeysAndFences(t *testing.T) {
	const limit, tries = 50_000, 1000
	long := func(i int) string { return fmt.Sprintf("%d:0:%s", i, strings.Repeat("n", 983)) }
	for name, raise := range map[string]func(w *world, key string){
		"a new key":            func(*world, string) {},
		"the same value again": func(w *world, key string) { w.send(ask("SET " + key + " v").fencedBy(long(2))) },
		"another value":        func(w *world, key string) { w.send(ask("SET " + key + " w").fencedBy(long(2))) },
		"a renewal":            func(w *world, key string) { w.send(ask("SET " + key + " v PX 60000").fencedBy(long(2))) },
		"a deletion":           func(w *world, key string) { w.send(ask("DEL " + key).fencedBy(long(2))) },
		"a deletion by value":  func(w *world, key string) { w.send(ask("VDEL " + key + " v").fencedBy(long(2))) },
		"a deletion of what is not there": func(w *world, key string) {
			w.send(ask("DEL " + key).fencedBy("1:0:n"))
			w.send(ask("DEL " + key).fencedBy(long(2)))
		},
		"a key that is set after deletion": func(w *world, key string) {
			w.send(ask("DEL " + key).fencedBy("1:0:n"))
			w.send(ask("SET " + key + " v").fencedBy(long(2)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Strict: true, MaxBytes: limit})
			w.set(ask("SET first v")) // a strict store accepts tokens up to its version
			first := "1:0:n"
			if name == "a new key" {
				first = long(1)
			}
			for i := range tries {
				w.send(ask(fmt.Sprint("SET ", i, " v PX 60000")).fencedBy(first))
			}
			for i := range tries {
				raise(w, strconv.Itoa(i))
			}
			held := 0
			for record := range w.store.Snapshot() {
				item, err := record.Decode()
				if err != nil {
					t.Fatal(err)
				}
				held += len(item.Key) + len(item.Value) + len(item.Token.Node)
			}
			if usage := w.store.Usage(); held > limit || usage.Bytes > limit || usage.Bytes < limit-1100 {
				t.Errorf("the store has %d bytes of keys, values and tokens, and counts %d; the limit is %d", held, usage.Bytes, limit)
			}
			for i := range tries { // with the token that it has, each key can be deleted
				if e := w.store.entries[strconv.Itoa(i)]; e != nil {
					if got, _ := w.send(ask("DEL " + e.key()).fencedBy(e.token().String())); !strings.HasPrefix(got, ":1\r\n") {
						t.Fatalf("DEL in a full store: %q", got)
					}
				}
			}
		})
	}
}

// Invariant 38: a renewal never fails for quota, and neither does any other request that does not
// make the store larger.
func TestInvariant38RenewalNeverFailsForQuota(t *testing.T) {
	w := newWorld(t, Options{})
	lock := w.set(ask("SET lock holder NEX PX 1000"))
	w.set(ask("SET k value").fencedBy(lock))
	for i := range 10 {
		w.set(ask("SET filler" + strconv.Itoa(i) + " v"))
	}
	for name, options := range map[string]Options{
		"exactly full":     {MaxKeys: 12, MaxBytes: 100},
		"over the limit":   {MaxKeys: 1, MaxBytes: 1}, // as after a restart with less
		"keys alone":       {MaxKeys: 1},
		"bytes alone":      {MaxBytes: 1},
		"no limit":         {},
		"the last of them": {MaxKeys: 12, MaxBytes: 96},
	} {
		t.Run(name, func(t *testing.T) {
			w.tb, w.store.options.MaxKeys, w.store.options.MaxBytes = t, options.MaxKeys, options.MaxBytes
			for range 3 {
				w.set(ask("SET lock holder NEX PX 1000"))
				w.set(ask("SET k value").fencedBy(lock))
				w.set(ask("SET k VALUE").fencedBy(lock))
				w.set(ask("SET k value PX 100000").fencedBy(lock))
				w.pass(999 * time.Millisecond)
			}
		})
	}
	w.tb = t
	w.store.options.MaxBytes = 1
	w.set(ask("SET k val").fencedBy(lock))
	w.want(ask("SET k valu").fencedBy(lock), refusal(textQuota))
}

// An expired key does not count towards the limits, even if Expire has not removed it yet.
func TestExpiredKeysDoNotCount(t *testing.T) {
	for name, options := range map[string]Options{"keys": {MaxKeys: 3}, "bytes": {MaxBytes: 6}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, options)
			first := w.set(ask("SET a v PX 1000"))
			second := w.set(ask("SET b v PX 500"))
			w.set(ask("SET c v PX 2000"))
			w.want(ask("KEYNOTIFY a"), "+OK\r\n")
			w.want(ask("KEYNOTIFY b"), "+OK\r\n")
			w.want(ask("KEYNOTIFY d"), "+OK\r\n")
			w.want(ask("SET d v"), refusal(textQuota))
			w.pass(999 * time.Millisecond)

			// One key has expired: the store removes it, and notifies its watchers first.
			answer, notified := w.send(ask("SET d v"))
			if answer != "+OK\r\n@1696374425999:1:StateStore" {
				t.Fatalf("got %q", answer)
			}
			w.wantLines("SET", notified, deleteLine("c", "b", second), setLine("c", "d", "v", "1696374425999:1:StateStore"))
			answer, notified = w.send(ask("SET e v"))
			if answer != refusal(textQuota) {
				t.Errorf("got %q", answer)
			}
			w.wantLines("the refused SET", notified)
			w.pass(time.Millisecond)
			w.set(ask("SET d v NEX")) // needs no room
			if got := w.store.Usage().Keys; got != 3 {
				t.Errorf("a SET that needs no room left %d keys; want 3", got)
			}
			_, notified = w.send(ask("SET e v"))
			w.wantLines("SET", notified, deleteLine("c", "a", first))
		})
	}
}

func TestAKeyThatExpiredLessThanAMillisecondAgoDoesNotCount(t *testing.T) {
	w := newWorld(t, Options{MaxKeys: 2})
	w.pass(300 * time.Microsecond)
	w.set(ask("SET k v PX 2"))
	w.pass(200 * time.Microsecond)
	w.set(ask("SET l v PX 2"))
	w.pass(1900 * time.Microsecond)
	w.set(ask("SET m v"))
	w.want(ask("SET n v"), refusal(textQuota)) // l has 100 microseconds left
}

// All other requests wait while a SET looks for expired keys. What it leaves, Expire removes.
func TestInvariant57ASetAtAFullStoreTakesFewSteps(t *testing.T) {
	const keys = 4 * roomSteps
	fill := func(w *world, lifetime string) {
		for i := range keys {
			w.set(ask(fmt.Sprintf("SET %05d  PX %s", i, lifetime)))
		}
	}
	awaitRoom := func(w *world, request request) {
		w.tb.Helper()
		for more := true; more; _, more = w.store.Expire(w.now, 64) {
		}
		w.set(request)
	}
	t.Run("that remove keys", func(t *testing.T) {
		w := newWorld(t, Options{MaxBytes: 5 * keys})
		fill(w, "1000")
		w.pass(time.Second)
		large := ask("SET large " + strings.Repeat("v", 3*5*roomSteps))
		w.want(large, refusal(textQuota))
		if left := w.store.Usage().Keys; left < keys/2 || left == keys {
			t.Errorf("%d of %d keys are left", left, keys)
		}
		awaitRoom(w, large)
	})
	t.Run("that file renewed keys anew", func(t *testing.T) {
		w := newWorld(t, Options{MaxKeys: keys + 1})
		fill(w, "1000")
		w.pass(time.Millisecond)
		w.set(ask("SET last v PX 999"))
		fill(w, "10000")
		w.pass(999 * time.Millisecond)
		w.want(ask("SET new v"), refusal(textQuota))
		if _, more := w.store.Expire(w.now, keys/2); !more {
			t.Error("the refused SET has filed most keys anew")
		}
		awaitRoom(w, ask("SET new v"))
	})
	t.Run("that look at keys", func(t *testing.T) {
		w := newWorld(t, Options{MaxKeys: keys + 1})
		w.pass(900 * time.Microsecond)
		fill(w, "10")
		w.pass(-800 * time.Microsecond)
		w.set(ask("SET last v PX 10"))
		w.pass(10*time.Millisecond + 400*time.Microsecond)
		w.want(ask("SET new v"), refusal(textQuota))
		w.pass(500 * time.Microsecond)
		awaitRoom(w, ask("SET new v"))
	})
}

func TestUsageIsWhatTheStoreHolds(t *testing.T) {
	w := newWorld(t, Options{Strict: true})
	want := func(what string, usage Usage) {
		t.Helper()
		if got := w.store.Usage(); got != usage {
			t.Errorf("%s: %+v; want %+v", what, got, usage)
		}
	}
	want("at first", Usage{})
	fence := w.set(ask("SET key value"))
	w.set(ask("SET k v PX 1000"))
	want("two keys", Usage{Keys: 2, Bytes: 10})
	w.set(ask("SET key value").fencedBy(fence))
	w.want(ask("KEYNOTIFY key"), "+OK\r\n")
	w.want(ask("KEYNOTIFY key").as("d"), "+OK\r\n")
	token := 16 + int64(len(defaultNode))
	want("two watches", Usage{Keys: 2, Bytes: 10 + token, Watches: 2, WatchBytes: 2 * (3 + watchCost)})
	w.send(ask("DEL key").fencedBy(fence))
	want("a fence", Usage{Keys: 1, Bytes: 5 + token, Fences: 1, Watches: 2, WatchBytes: 2 * (3 + watchCost)})
	w.pass(time.Second)
	w.store.Expire(w.now, 1)
	w.store.Disconnect("d")
	want("one watch", Usage{Bytes: 3 + token, Fences: 1, Watches: 1, WatchBytes: 3 + watchCost})
	for i := range DefaultDedupWindow + 1 {
		w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("DEL", "k")), Delivery: Redelivery, Correlation: fmt.Append(nil, i)}))
	}
	want("a full window", Usage{Bytes: 3 + token, Fences: 1, Watches: 1, WatchBytes: 3 + watchCost,
		DedupEntries: DefaultDedupWindow, DedupBytes: DefaultDedupWindow * dedupEntryBytes})
	w.store.EndSession("c")
	want("after the session", Usage{Bytes: 3 + token, Fences: 1})
}

// Fences count as their keys, and a deletion that waits for its client as its key: so they must not keep
// the values of the keys.
func TestWhatIsLeftOfAKeyDoesNotKeepItsValue(t *testing.T) {
	const keys, valueBytes = 16, 1 << 20
	value := strings.Repeat("v", valueBytes)
	for name, end := range map[string]func(w *world, key, fence string) Effects{
		"DEL": func(w *world, key, fence string) Effects {
			request := Request{Client: "c", Payload: []byte(payload("DEL", key)), FencingToken: &fence}
			_, effects := w.store.Apply(w.now, Parse(request))
			return effects
		},
		"expiry": func(w *world, _, _ string) Effects {
			w.pass(time.Second)
			effects, _ := w.store.Expire(w.now, 1)
			return effects
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Strict: true, Journaled: true})
			fence := w.set(ask("SET lease holder"))
			var kept []Effects
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range keys {
				key := strconv.Itoa(i)
				w.want(ask("KEYNOTIFY "+key), "+OK\r\n")
				w.set(request{words: []string{"SET", key, value, "PX", "1000"}, ft: fence})
				kept = append(kept, end(w, key, fence))
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if usage := w.store.Usage(); usage.Keys != 1 || usage.Fences != keys || len(kept[0].Notifications) != 1 {
				t.Fatalf("%+v, %v", usage, kept[0])
			}
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > keys*valueBytes/4 {
				t.Errorf("%d keys with values of %d bytes are gone, and take up %d bytes", keys, valueBytes, grown)
			}
			runtime.KeepAlive(w)
			runtime.KeepAlive(kept)
		})
	}
}

// Key and value are one piece of memory, and the map of the entries refers to it too.
func TestAValueThatIsReplacedDoesNotStay(t *testing.T) {
	const keys, valueBytes = 16, 1 << 20
	value := strings.Repeat("v", valueBytes)
	w := newWorld(t, Options{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range keys {
		w.set(ask("SET " + strconv.Itoa(i) + " " + value))
		w.set(ask("SET " + strconv.Itoa(i) + " short"))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > keys*valueBytes/4 {
		t.Errorf("%d values of %d bytes were replaced by short ones, and %d bytes are in use", keys, valueBytes, grown)
	}
	runtime.KeepAlive(w)
}

// Clients choose the nodes of tokens, so a node must not outlive the last key that has it.
func TestNodesOfRestoredTokensDoNotStay(t *testing.T) {
	w := newWorld(t, Options{Strict: true})
	for i := range 100 {
		token := hlc.Token{Wall: 1, Node: "client-" + strconv.Itoa(i)}
		for _, item := range []Item{
			{Kind: KindKey, Key: "key " + strconv.Itoa(i), Version: hlc.Timestamp{Wall: 1, Node: "earlier"}, Token: token},
			{Kind: KindFence, Key: "fence " + strconv.Itoa(i), Token: token},
		} {
			if err := w.store.Restore(item.Record()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if nodes := w.store.nodes.others; len(nodes) != 1 || nodes["earlier"] == nil {
		t.Errorf("the store keeps %d nodes, want one: the node of the earlier store", len(nodes))
	}
}
