// Package statestore is the state machine of the state store protocol: a set of
// keys with values, versions, expiry, fencing tokens and watchers.
//
// It is pure. It has no network, no goroutine and no clock: time comes in as an
// [Instant], the client as a name that the caller vouches for, and what should
// happen outside comes back as a [Reply] and a list of [Notification]. Whoever
// embeds it (the server, or the in-process connection of the tests) decides
// about locks, sockets and timers. The same sequence of calls therefore always
// gives the same answers, which is what tests, logs and replicas need.
//
// A request passes through three steps:
//
//	command := statestore.Parse(request)             // no state: needs no lock
//	reply, notifications := store.Apply(now, command) // the only step that changes anything
//	payload := reply.Append(nil, statestore.Deployed) // the reply's bytes
//
// A request that is delivered twice, in one session of its client, is applied once
// and answered twice.
//
// Wall clocks order versions and decide nothing else. Versions rise whatever the clock
// does, keys expire on another clock, and a fencing token that the store issued is never
// too far ahead for it. The refusal of a timestamp or a token that is too far ahead has the
// store's clock in [Reply].Version, so that the sender can adapt.
//
// What the package does not do: it neither authenticates clients nor knows what
// they may do (see [Command.Deny]), and nothing survives the process.
//
// A [Store] is not safe for concurrent use.
package statestore
