package statestore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
)

// docs/protocol.md §5.2: the notifications of one request for a client that watches key k.
func TestNotifications(t *testing.T) {
	const stored = "1696374425000:1:StateStore" // of "SET k v"
	const next = "1696374425000:2:StateStore"
	tests := []struct {
		name    string
		request request
		want    []string
	}{
		{"SET says the new version", ask("SET k w"), []string{setLine("w", "k", "w", next)}},
		{"SET of an empty value", ask("SET k "), []string{setLine("w", "k", "", next)}},
		{"a renewal notifies", ask("SET k v NEX PX 5"), []string{setLine("w", "k", "v", next)}},
		{"DEL says the version of what went away", ask("DEL k"), []string{deleteLine("w", "k", stored)}},
		{"VDEL too", ask("VDEL k v"), []string{deleteLine("w", "k", stored)}},
		{"NX that is refused", ask("SET k w NX"), nil},
		{"NEX that is refused", ask("SET k w NEX"), nil},
		{"VDEL of another value", ask("VDEL k w"), nil},
		{"GET", ask("GET k"), nil},
		{"KEYNOTIFY", ask("KEYNOTIFY k"), nil},
		{"KEYNOTIFY STOP", ask("KEYNOTIFY k STOP"), nil},
		{"a SET without timestamp", ask("SET k w").at("-"), nil},
		{"a SET that is not well-formed", ask("SET k w PX 0"), nil},
		{"a SET of another key", ask("SET K w"), nil},
		{"a DEL of a missing key", ask("DEL K"), nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set(ask("SET k v"))
			w.want(ask("KEYNOTIFY k").as("w"), "+OK\r\n")
			_, notified := w.send(test.request)
			w.wantLines("it", notified, test.want...)
		})
	}
}

func TestNotificationsInBothDialects(t *testing.T) {
	const set = "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n@1696374425000:1:StateStore"
	for dialect, del := range map[Dialect]string{
		Deployed:   "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n@1696374425000:1:StateStore",
		Documented: "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n@1696374425000:1:StateStore",
	} {
		w := newWorld(t, Options{})
		w.dialect = dialect
		w.want(ask("KEYNOTIFY k").as("w"), "+OK\r\n")
		_, notified := w.send(ask("SET k v"))
		w.wantLines("SET", notified, "w k "+set)
		_, notified = w.send(ask("DEL k"))
		w.wantLines("DEL", notified, "w k "+del)
	}
}

// Watchers are notified once each, in the order of their registration.
func TestEveryWatcherIsNotifiedOnceInOrder(t *testing.T) {
	w := newWorld(t, Options{})
	for _, client := range []string{"z", "a", "m", "z", "a"} { // again changes nothing
		w.want(ask("KEYNOTIFY k").as(client), "+OK\r\n")
	}
	w.want(ask("KEYNOTIFY other").as("b"), "+OK\r\n")
	_, notified := w.send(ask("SET k v PX 1000").as("a"))
	const first = "1696374425000:1:StateStore"
	w.wantLines("SET", notified, setLine("z", "k", "v", first), setLine("a", "k", "v", first), setLine("m", "k", "v", first))
	w.want(ask("KEYNOTIFY k STOP").as("z"), "+OK\r\n")
	w.want(ask("KEYNOTIFY k STOP").as("z"), ":0\r\n")
	w.want(ask("KEYNOTIFY k").as("z"), "+OK\r\n") // last now
	w.pass(time.Second)
	expired, _ := w.store.Expire(w.now, 1)
	w.wantLines("Expire", w.lines(expired.Notifications), deleteLine("a", "k", first), deleteLine("m", "k", first), deleteLine("z", "k", first))
	if _, notified = w.send(ask("SET k v")); len(notified) != 3 { // watches outlive the key
		t.Errorf("after the expiry SET notifies %q", notified)
	}
}

func TestStopEndsTheWatchOfOneClientAndKey(t *testing.T) {
	w := newWorld(t, Options{})
	for _, client := range []string{"a", "b"} {
		w.want(ask("KEYNOTIFY k").as(client), "+OK\r\n")
		w.want(ask("KEYNOTIFY l").as(client), "+OK\r\n")
	}
	w.want(ask("KEYNOTIFY k STOP").as("a"), "+OK\r\n")
	_, notified := w.send(ask("SET k v"))
	w.wantLines("SET k", notified, setLine("b", "k", "v", "1696374425000:1:StateStore"))
	_, notified = w.send(ask("SET l v"))
	w.wantLines("SET l", notified, setLine("a", "l", "v", "1696374425000:2:StateStore"), setLine("b", "l", "v", "1696374425000:2:StateStore"))
}

// A returned notification does not change while watchers come and go.
func TestNotificationsDoNotChangeWithTheWatchers(t *testing.T) {
	w := newWorld(t, Options{})
	for _, client := range []string{"a", "b", "c"} {
		w.want(ask("KEYNOTIFY k").as(client), "+OK\r\n")
	}
	ts := "1696374425000:0:n"
	_, notified := w.store.Apply(w.now, Parse(Request{Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts}))
	w.store.Disconnect("a")
	w.want(ask("KEYNOTIFY k").as("d"), "+OK\r\n")
	const version = "1696374425000:1:StateStore"
	w.wantLines("SET", w.lines(notified.Notifications), setLine("a", "k", "v", version), setLine("b", "k", "v", version), setLine("c", "k", "v", version))
}

// docs/protocol.md §5.4: registrations end with the client's connection.
func TestDisconnectDropsEveryWatchOfOneClient(t *testing.T) {
	w := newWorld(t, Options{})
	for _, key := range []string{"k", "l", "m"} {
		w.want(ask("KEYNOTIFY "+key).as("gone"), "+OK\r\n")
	}
	w.want(ask("KEYNOTIFY l").as("stays"), "+OK\r\n")
	w.store.Disconnect("gone")
	w.store.Disconnect("gone")
	w.store.Disconnect("never was")
	for _, key := range []string{"k", "m"} {
		_, notified := w.send(ask("SET " + key + " v"))
		w.wantLines("SET "+key, notified)
	}
	_, notified := w.send(ask("SET l v"))
	w.wantLines("SET l", notified, setLine("stays", "l", "v", "1696374425000:3:StateStore"))
	w.want(ask("KEYNOTIFY k STOP").as("gone"), ":0\r\n")
	w.want(ask("KEYNOTIFY k").as("gone"), "+OK\r\n") // after it came back
	_, notified = w.send(ask("SET k v"))
	w.wantLines("SET k", notified, setLine("gone", "k", "v", "1696374425000:4:StateStore"))
}

// Ended watches take no memory.
func TestEndedWatchesTakeNoMemory(t *testing.T) {
	w := newWorld(t, Options{})
	for _, client := range []string{"a", "b"} {
		for _, key := range []string{"k", "l"} {
			w.want(ask("KEYNOTIFY "+key).as(client), "+OK\r\n")
		}
	}
	w.want(ask("KEYNOTIFY k STOP").as("a"), "+OK\r\n")
	w.want(ask("KEYNOTIFY l STOP").as("a"), "+OK\r\n")
	w.store.Disconnect("b")
	if watches := w.store.watches; len(watches.byKey) != 0 || len(watches.byClient) != 0 || watches.leaving != nil {
		t.Errorf("%d keys and %d clients are left", len(watches.byKey), len(watches.byClient))
	}
	w.checkWatches()
}

// From the first step on a client is not notified, and its remaining watches do not affect others.
func TestADisconnectedClientIsRemovedAtOnceAndFreedInSteps(t *testing.T) {
	w := newWorld(t, Options{})
	const keys = 10
	for i := range keys {
		for _, client := range []string{"stays", "gone"} {
			w.want(ask("KEYNOTIFY k"+strconv.Itoa(i)).as(client), "+OK\r\n")
		}
	}
	slices := 1
	for ; w.store.DisconnectSome("gone", 3); slices++ {
		for i := range keys {
			if _, notified := w.send(ask("SET k" + strconv.Itoa(i) + " v")); len(notified) != 1 || !strings.HasPrefix(notified[0], "stays ") {
				t.Fatalf("after %d slices k%d notifies %q", slices, i, notified)
			}
		}
		if freed := 2*keys - w.store.watches.count; freed != 3*slices {
			t.Fatalf("%d slices of 3 freed %d watches", slices, freed)
		}
		w.checkWatches()
	}
	if slices != 4 || w.store.watches.count != keys {
		t.Errorf("after %d slices there are %d watches; want 4 slices and %d watches", slices, w.store.watches.count, keys)
	}
	if w.store.DisconnectSome("gone", 1) {
		t.Error("there is more to free of a client that is forgotten")
	}
}

// However many watches of a key end, the others are notified in the order of their registration.
func TestTheOrderOfWatchersSurvivesThoseThatLeave(t *testing.T) {
	w := newWorld(t, Options{})
	var left []string
	for i := range 100 {
		client := strconv.Itoa(i)
		w.want(ask("KEYNOTIFY k").as(client), "+OK\r\n")
		left = append(left, client)
	}
	for step := 0; len(left) > 0; step++ {
		at := step * 37 % len(left)
		w.want(ask("KEYNOTIFY k STOP").as(left[at]), "+OK\r\n")
		left = append(left[:at], left[at+1:]...)
		w.checkWatches()
		_, notified := w.send(ask("SET k v"))
		var got []string
		for _, line := range notified {
			client, _, _ := strings.Cut(line, " ")
			got = append(got, client)
		}
		if !slices.Equal(got, left) {
			t.Fatalf("%q are notified; want %q", got, left)
		}
	}
}

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
			w.store.Disconnect("one")
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
