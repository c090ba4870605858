package statestore

import (
	"fmt"
	"testing"
	"time"
)

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
	want("two watches", Usage{Keys: 2, Bytes: 10, Watches: 2, WatchBytes: 2 * (3 + watchCost)})
	w.send(ask("DEL key").fencedBy(fence))
	want("a fence", Usage{Keys: 1, Bytes: 5, Fences: 1, Watches: 2, WatchBytes: 2 * (3 + watchCost)})
	w.pass(time.Second)
	w.store.Expire(w.now, 1)
	w.store.Disconnect("d")
	want("one watch", Usage{Bytes: 3, Fences: 1, Watches: 1, WatchBytes: 3 + watchCost})
	for i := range DefaultDedupWindow + 1 {
		w.store.Apply(w.now, Parse(Request{Client: "c", Payload: []byte(payload("DEL", "k")), Correlation: fmt.Append(nil, i)}))
	}
	want("a full window", Usage{Bytes: 3, Fences: 1, Watches: 1, WatchBytes: 3 + watchCost,
		DedupEntries: DefaultDedupWindow, DedupBytes: DefaultDedupWindow * dedupEntryBytes})
	w.store.EndSession("c")
	want("after the session", Usage{Bytes: 3, Fences: 1})
}
