package statestore

import (
	"testing"
	"time"
)

// PROTOCOL 5: what one request makes the store say to a client that watches key k.
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

// Watchers hear of a change in the order in which they began, each once.
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
	w.wantLines("Expire", w.lines(expired), deleteLine("a", "k", first), deleteLine("m", "k", first), deleteLine("z", "k", first))
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

// A notification that was handed out stays what it was while watchers come and go.
func TestNotificationsDoNotChangeWithTheWatchers(t *testing.T) {
	w := newWorld(t, Options{})
	for _, client := range []string{"a", "b", "c"} {
		w.want(ask("KEYNOTIFY k").as(client), "+OK\r\n")
	}
	ts := "1696374425000:0:n"
	_, notified := w.store.Apply(w.now, Parse(Request{Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts}))
	w.store.Forget("a")
	w.want(ask("KEYNOTIFY k").as("d"), "+OK\r\n")
	const version = "1696374425000:1:StateStore"
	w.wantLines("SET", w.lines(notified), setLine("a", "k", "v", version), setLine("b", "k", "v", version), setLine("c", "k", "v", version))
}

// PROTOCOL 5: registrations die with the client's connection.
func TestForgetDropsEveryWatchOfOneClient(t *testing.T) {
	w := newWorld(t, Options{})
	for _, key := range []string{"k", "l", "m"} {
		w.want(ask("KEYNOTIFY "+key).as("gone"), "+OK\r\n")
	}
	w.want(ask("KEYNOTIFY l").as("stays"), "+OK\r\n")
	w.store.Forget("gone")
	w.store.Forget("gone")
	w.store.Forget("never was")
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

// Watches that ended leave nothing behind.
func TestEndedWatchesTakeNoMemory(t *testing.T) {
	w := newWorld(t, Options{})
	for _, client := range []string{"a", "b"} {
		for _, key := range []string{"k", "l"} {
			w.want(ask("KEYNOTIFY "+key).as(client), "+OK\r\n")
		}
	}
	w.want(ask("KEYNOTIFY k STOP").as("a"), "+OK\r\n")
	w.want(ask("KEYNOTIFY l STOP").as("a"), "+OK\r\n")
	w.store.Forget("b")
	if watches := w.store.watches; len(watches.byKey) != 0 || len(watches.byClient) != 0 {
		t.Errorf("%d keys and %d clients are left", len(watches.byKey), len(watches.byClient))
	}
}
