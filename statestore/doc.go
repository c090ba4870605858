// Package statestore is the state machine of the state store protocol: a set of keys with
// values, versions, expiry times, fencing tokens and watches.
//
// It is pure: it has no network, no goroutine and no clock. The caller passes the time as
// an [Instant] and the name of an authenticated client, and gets a [Reply] and its [Effects]:
// notifications, and the records to keep. The caller also decides about locks, sockets and timers. So the same
// calls always return the same results, which tests, logs and replicas need. The caller is
// the server, or the in-process connection of tests.
//
// A request passes through three steps:
//
//	command := statestore.Parse(request)              // does not need the store, so no lock
//	reply, effects := store.Apply(now, command)       // the only step that changes the store
//	payload := reply.Append(nil, statestore.Deployed) // the payload of the MQTT reply
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
// # Documents
//
// docs/protocol.md is the norm of this package. It has the order of the checks in §4.4.
package statestore
