// Package lease lets one process at a time hold a name in the state store.
//
// A [Lease] is a name and its settings. [Lease.Acquire] waits until the name is free and returns
// a [Tenure]: one uninterrupted holding, kept alive by renewals until it is released or lost. A
// tenure ends exactly once, never comes back, and has one fencing token.
//
//	l, err := lease.New(client, "press-7/active", lease.Options{TTL: 2 * time.Second})
//	…
//	tenure, err := l.Acquire(ctx)
//	…
//	defer tenure.Release(context.Background())
//	<-tenure.Context().Done() // ended: context.Cause says why
//
// # What is guaranteed, and what is not
//
// The store never lets two values hold one name. What a process knows can be older than what the
// store knows, so a tenure judges itself, on the safe side. Its deadline counts from before its
// last accepted request left and comes a margin before the store's. Each call of [Tenure.Token]
// and [Tenure.Remaining] checks it, on a clock that goes on while the machine is suspended.
//
// A process that is stopped between such a check and the action that follows can still act
// too late. No lease can prevent that. Give the action the tenure's token and let the
// resource refuse old ones: package fencing does it.
//
// # What keeps a lease from being acquired
//
//	reason                                      TryAcquire            Acquire
//	another holder has it                       *HeldError (ErrHeld)  waits
//	no connection, no answer                    repeats the request   repeats the request
//	a refusal that can pass: not authorized,    the error             waits, with a backoff, and
//	a quota, a clock, a busy broker, …                                calls Options.OnWaiting
//	a request that makes no sense or is too     the error             the error
//	large; a client closed or taken over
//
// If the context ends first, the error of Acquire says why it waited, and the last known holder.
//
// # How a tenure ends
//
//	cause (errors.Is)             meaning                              what to do
//	ErrReleased                   Release was called                   nothing
//	ErrLost                       the store has another holder         acquire again
//	ErrDeadlinePassed             no renewal succeeded in time         acquire again; the text has the last failure
//	ErrFencedOut                  the token of a write was refused     acquire again
//	ErrDeleted                    the store's key is gone              find out why; acquire again
//	ErrStoreReplaced              another store answers, such as one   acquire again; nothing that was
//	                              that was restarted without its data  claimed is protected any more
//	ErrConnectionLost             the connection dropped, and an       acquire again
//	                              option makes that the end
//	transport.ErrClosed           the client was closed                nothing: the program is ending
//	transport.ErrSessionTakenOver another process has our client id    give each process its own client id
//
// A deletion is noticed by a notification. Notifications are hints, so the store is asked
// before anything ends. If the notification is lost, and no other process acquires the lease
// meanwhile, the next renewal sets the key again and the tenure goes on.
//
// # When the store is restarted
//
// A store that lost its data knows neither the lease nor the fences of the keys that were
// written under its token. So a tenure never outlives the data of the store that granted it.
// Our stores have an identity, which is new whenever a store starts without the data of an
// earlier one. Every request on behalf of a tenure names that identity, another store refuses
// the request, and the first reply of another store ends the tenure. Stores deployed today have
// no identity: with them, a tenure reads its key once on each new connection before it renews.
//
// The new store may grant the lease before the holder at the old one has noticed. A hold-off
// (statestore.Options.HoldOff, tenure serve --hold-off) of the longest TTL in use prevents it.
//
// # In time
//
//	the last accepted request leaves                      expiry at the store, at the earliest
//	│                                                                    │
//	├─ RenewEvery ─┬─ retries ─ … ─┬────── GracePeriod ───┬── Margin ────┤
//	               renewal         Context ends           deadline: Token refuses
//
// The margin must be more than the two clocks can drift apart within a TTL. docs/embed.md says what a TTL
// means for failover.
//
// After a request that is not answered within RequestTimeout, the client doubts its connection:
// the broker has half of RequestTimeout more, and at least 100 ms, for a sign of life. Then the
// client connects again, and the renewal goes over the new connection. So a half-open connection
// costs one timeout, whatever the keep-alive, unless the tenure ends with its connection.
//
// # Instant failover
//
// After a crash the next holder waits for the TTL, because no other process can know that the
// holder is dead. The broker can: it sees the connection end. With [Options.InstantFailover]
// the connection has an MQTT Will that releases the lease, and the successor holds it a round
// trip or two after the process was killed.
//
// The Will needs a new connection: Acquire replaces the client's connection once for each
// tenure, and other requests of that client that are under way then end with an unknown outcome.
// As the broker releases the lease when the connection drops, the tenure ends then.
//
// This promises less than a lease without it. If only the broker's end of a connection is cut, by a proxy between
// them or by another client with the same client id, the lease is released at once. The holder notices when it next
// gets no answer, at the latest at its deadline. Guarded writes are refused meanwhile. When another store takes over
// from one whose machine fell silent, the lease lasts for half of the TTL, and its holder gives the silent connection
// up before, unless it is paused. A process that waits notices it too: it probes its connection when it has heard
// nothing for two renewals. For actions that cannot be fenced, leave the option off. If the broker refuses the Will
// in its CONNACK, or the store does not honour it, the TTL decides. With a broker that closes each connection with a
// Will instead, Acquire waits: see Options.OnWaiting.
//
// # What is logged and traced
//
// Options.Logger gets the beginning and the end of each tenure, with its cause, and which holder
// Acquire waits for. Options.Trace has functions for metrics and spans: attempts, tenures, renewals
// with their round trip and headroom, and writes that a guard refused. The modules
// contrib/tenureprom and contrib/tenureotel implement it.
//
// # Values
//
// The value of the key is "<holder>:<nonce>", with a new nonce for each attempt to acquire.
// So a request of an earlier tenure that arrives late cannot touch a later one.
//
// # Documents
//
// docs/embed.md shows how to choose the options. docs/invariants.md 1 to 29 and 47 to 54 say what must
// always hold.
package lease
