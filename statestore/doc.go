// Package statestore is the state machine of the state store protocol: a set of keys with
// values, versions, expiry times, fencing tokens and watches.
//
// It is pure: it has no network, no goroutine and no clock. The caller passes the time as
// an [Instant] and the name of an authenticated client, and gets a [Reply] and its [Effects]:
// the notifications, and the records to keep. The caller also decides about locks, sockets and
// timers. So the same calls always return the same results, which tests, logs and replicas need.
// The caller is the server, the attached store, or the in-process connection of tests.
//
// A request passes through three steps:
//
//	command := statestore.Parse(request)        // does not need the store, so no lock
//	reply, effects := store.Apply(now, command) // the only step that changes the store
//	payload := reply.Append(nil)                // the payload of the MQTT reply
//
// The store recognizes a request that is delivered again within a client's session: it
// applies the request once and returns the same reply again. [Options].DedupWindow bounds
// how many requests it recognizes.
//
// Wall clocks order versions and decide nothing else. Versions rise even if the wall clock
// steps back, keys expire on a monotonic clock, and the store never refuses a fencing token
// that it issued as too far ahead. When it refuses a timestamp or a token as too far ahead,
// [Reply].Version has the store's clock, so that the sender can adapt.
//
// The package does not authenticate clients, and does not know what they may do; see
// [Command.Deny]. It keeps nothing on disk: a program that wants its data to survive keeps
// the records of the store in a [Journal].
//
// A [Store] is not safe for concurrent use.
//
// # Data that survives
//
// With [Options].Journaled, [Effects] has the records that a command changed, in groups. A
// program that commits each group before it lets the reply and the notifications leave can
// restore the store after a crash: [Store.Restore] for each record, then [Store.Restored] and
// [Store.Begin]. The journal may lose the last groups that it did not confirm, but must keep
// each whole or not at all. Package engine of this repository does all that on a [Journal].
//
// What survives: keys with their values, tokens and lifetimes, the fences of a strict store,
// the identity, the order of versions, the replies to requests that changed one of these, and the
// last 500 changes of leases.
// What does not: watches, which end with the connection, how much of a lifetime had passed,
// and replies to requests that changed nothing.
//
// A renewal of a lease has no record. That is safe because each key gets its whole lifetime
// again, so it outlasts the deadline of its holder. A key that ended with its connection is the
// exception, see [Command].Willed.
//
// # Documents
//
// docs/protocol.md is the norm of this package. It has the order of the checks in §4.4.
package statestore
