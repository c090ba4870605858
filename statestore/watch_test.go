package statestore

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/protocol"
)

func TestWatchesAreBoundedInBytes(t *testing.T) {
	long := strings.Repeat("l", assuredWatchBytes) // more than the assured bytes
	const cost = assuredWatchBytes + watchCost
	for name, test := range map[string]struct {
		options    Options
		one, other string // answers to the third watch of one client, and the first of another
	}{
		"no limit":            {Options{}, "+OK\r\n", "+OK\r\n"},
		"of one client":       {Options{MaxWatchBytes: 2 * (cost + 1)}, refusal(textQuota), "+OK\r\n"},
		"of all":              {Options{MaxAllWatchBytes: 5 * (cost + 1)}, refusal(textQuota), "+OK\r\n"},
		"of all, to the byte": {Options{MaxAllWatchBytes: 6*(cost+1) - 1}, refusal(textQuota), "+OK\r\n"},
		"of all, with room":   {Options{MaxAllWatchBytes: 6 * (cost + 1)}, "+OK\r\n", "+OK\r\n"},
		"of one, to the byte": {Options{MaxWatchBytes: 3*(cost+1) - 1}, refusal(textQuota), "+OK\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.options)
			watch := func(client, key, answer string) {
				t.Helper()
				w.want(ask("KEYNOTIFY "+long+key).as(client), answer)
			}
			watch("one", "1", "+OK\r\n")
			watch("one", "2", "+OK\r\n")
			watch("one", "3", test.one)
			watch("one", "1", "+OK\r\n") // is there already
			watch("other", "1", test.other)
			w.want(ask("KEYNOTIFY "+long+"1 STOP").as("one"), "+OK\r\n")
			watch("one", "3", "+OK\r\n")
			w.checkWatches()
			w.store.Disconnect(w.now, "one", math.MaxInt)
			watch("other", "2", "+OK\r\n")
			watch("one", "1", "+OK\r\n")
		})
	}
}

// A client that cannot watch cannot follow a lock. Other clients must not use up the room.
// docs/protocol.md §5.1: a topic of MQTT has 65,535 bytes at most.
func TestAKeyThatIsTooLongForTheTopicOfItsNotificationsCannotBeWatched(t *testing.T) {
	const client = "client"
	most := (1<<16 - 1 - len(protocol.NotifyTopic(client, ""))) / 2
	for _, test := range []struct {
		length int
		want   string
	}{
		{most, "+OK\r\n"},
		{most + 1, "-ERR the key is too long to be watched: the topic of its notifications would have more than 65535 bytes\r\n"},
		{40_000, "-ERR the key is too long to be watched: the topic of its notifications would have more than 65535 bytes\r\n"},
	} {
		w := newWorld(t, Options{})
		key := strings.Repeat("k", test.length)
		w.set(ask("SET " + key + " v"))
		w.want(ask("KEYNOTIFY "+key).as(client), test.want)
		_, notified := w.send(ask("SET " + key + " w"))
		if got := len(notified) > 0; got != (test.length == most) {
			t.Errorf("%d bytes: notified is %v", test.length, got)
		}
		if test.length > most {
			w.want(ask("KEYNOTIFY "+key+" STOP").as(client), ":0\r\n")
		}
	}
}

func TestInvariant57WatchesOfSomeClientsLeaveRoomForThoseOfOthers(t *testing.T) {
	const total = 1 << 20
	w := newWorld(t, Options{MaxAllWatchBytes: total})
	watch := func(client, key string) bool {
		answer, _ := w.send(ask("KEYNOTIFY " + key).as(client))
		return answer == "+OK\r\n"
	}
	const greedy = 100
	for i := range greedy { // each takes as much as it gets, with keys of all sizes
		client := fmt.Sprint("greedy", i)
		for size := total / 2; size > 0; size /= 2 {
			for n := 0; watch(client, strings.Repeat("k", size)+fmt.Sprint(n)); n++ {
			}
		}
	}
	for i := range 10 {
		client := fmt.Sprint("modest", i)
		n := 0
		for ; n < 60 && watch(client, fmt.Sprint("key", n)); n++ {
		}
		if n != 60 {
			t.Fatalf("%s gets %d watches, want 60; all have %d of %d bytes", client, n, w.store.watches.bytes, total)
		}
	}
	if used := w.store.watches.bytes; used > total+(greedy+10)*assuredWatchBytes {
		t.Errorf("all watches take up %d bytes", used)
	}
	w.checkWatches()
}

func TestInvariant57AWatchThatHasEndedTakesUpNoMemory(t *testing.T) {
	w := newWorld(t, Options{})
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := heap()
	for client := range 20 {
		id := fmt.Sprint(client)
		for key := range 5000 {
			w.store.watches.add(id, fmt.Sprint(key), Documented, false, &w.store.options)
		}
		for key := range 4999 {
			w.store.watches.remove(w.store.watches.find(id, fmt.Sprint(key)))
		}
	}
	w.checkWatches()
	if kept := heap() - before; kept > 1<<20 { // what all watches share keeps some
		t.Errorf("20 watches keep %d bytes", kept)
	}
	runtime.KeepAlive(w)
}
