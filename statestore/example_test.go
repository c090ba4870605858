package statestore_test

import (
	"fmt"

	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// send passes one request through a store, as a server does for each message.
func send(store *statestore.Store, now statestore.Instant, client, timestamp string, words ...string) []statestore.Notification {
	command := statestore.Parse(statestore.Request{
		Client:    client,
		Payload:   resp3.AppendCommand(nil, words...),
		Timestamp: &timestamp,
	})
	reply, effects := store.Apply(now, command)
	fmt.Printf("%s %s: %q", client, words[0], reply.Append(nil))
	if !reply.Version.IsZero() {
		fmt.Print(" ", reply.Version)
	}
	fmt.Println()
	return effects.Notifications
}

// One client takes a lock, another is refused, and the first releases it.
func Example() {
	store, err := statestore.New(statestore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := statestore.Instant{WallMillis: 1696374425000}
	send(store, now, "a", "1696374425000:0:a", "SET", "lock", "a", "NEX", "PX", "10000")
	send(store, now, "b", "1696374425000:0:b", "SET", "lock", "b", "NEX", "PX", "10000")
	send(store, now, "b", "1696374425000:1:b", "GET", "lock")
	send(store, now, "b", "1696374425000:2:b", "VDEL", "lock", "b")
	send(store, now, "a", "1696374425000:3:a", "VDEL", "lock", "a")
	send(store, now, "b", "1696374425000:4:b", "SET", "lock", "b", "NEX", "PX", "10000")
	// Output:
	// a SET: "+OK\r\n" 1696374425000:1:StateStore
	// b SET: ":-1\r\n" 1696374425000:1:StateStore
	// b GET: "$1\r\na\r\n" 1696374425000:1:StateStore
	// b VDEL: ":-1\r\n"
	// a VDEL: ":1\r\n" 1696374425000:1:StateStore
	// b SET: "+OK\r\n" 1696374425000:5:StateStore
}
