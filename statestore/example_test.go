package statestore_test

import (
	"fmt"
	"time"

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

// A store commits what a lease needs to survive a crash. Its renewals have no records.
func ExampleStore_Restore() {
	journal := make(map[string][]byte) // a real one is on a disk
	commit := func(groups ...statestore.Group) {
		for _, group := range groups {
			for _, record := range group {
				if record.Value == nil {
					delete(journal, string(record.ID))
				} else {
					journal[string(record.ID)] = record.Value
				}
			}
		}
	}
	open := func(now statestore.Instant) *statestore.Store {
		store, err := statestore.New(statestore.Options{Journaled: true, Identity: "press 7"})
		if err != nil {
			panic(err)
		}
		for id, value := range journal {
			if err := store.Restore(statestore.Record{ID: []byte(id), Value: value}); err != nil {
				panic(err)
			}
		}
		first, err := store.Restored(now, statestore.Former{})
		if err != nil {
			panic(err)
		}
		commit(first)
		store.Committed(store.Bound())
		store.Begin(now)
		return store
	}
	timestamp := "1696374425000:0:a"
	lease := statestore.Parse(statestore.Request{
		Client: "a", Payload: resp3.AppendCommand(nil, "SET", "lock", "a", "NEX", "PX", "10000"), Timestamp: &timestamp,
	})

	now := statestore.Instant{WallMillis: 1696374425000}
	store := open(now)
	reply, effects := store.Apply(now, lease)
	commit(effects.Groups...)
	fmt.Println(reply.Outcome, reply.Version, len(effects.Groups), "group")

	now.Elapsed += 9 * time.Second
	reply, effects = store.Apply(now, lease)
	fmt.Println(reply.Outcome, reply.Version, len(effects.Groups), "groups")

	store = open(now) // after a crash
	now.Elapsed += 9 * time.Second
	reply, _ = store.Apply(now, lease)
	fmt.Println(reply.Outcome, reply.Version)
	// Output:
	// ok 1696374425000:1:StateStore 1 group
	// ok 1696374425000:2:StateStore 0 groups
	// ok 1696374455000:2:StateStore
}
