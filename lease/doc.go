// Package lease holds a name in the state store for one process at a time.
//
// A [Lease] is a name and its settings. [Lease.Acquire] waits until nobody holds
// the name and returns a [Tenure]: one uninterrupted holding, kept alive by
// renewals until it is released or lost. A tenure ends exactly once, never comes
// back, and carries one fencing token from beginning to end.
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
// The store never lets two values hold one name. What a process believes can be
// older than what the store knows, so a tenure judges itself, on the safe side:
// its deadline counts from before its last accepted request left, ends a margin
// before the store's, and is checked inside every call of [Tenure.Token] and
// [Tenure.Remaining], on a clock that goes on while the machine is suspended.
//
// A process that is stopped between such a check and the action that follows can
// still act too late. No lease can prevent that. Give the action the tenure's
// token and let the resource refuse old ones: package fencing does it.
//
// # What keeps a lease from being acquired
//
//	what                                        TryAcquire            Acquire
//	another has it                              a *HeldError          waits
//	no connection, no answer                    repeats it            repeats it
//	a refusal that can pass: not authorized,    the error             waits, with a backoff, and
//	a quota, a clock, a broker that is busy, …                        tells Options.OnWaiting
//	a request that makes no sense or is too     the error             the error
//	large; a client closed or taken over
//
// If its context ends, the error of Acquire says why it still waited, and names the last
// known holder.
//
// # How a tenure ends
//
//	cause (errors.Is)             meaning                              who recovers, how
//	ErrReleased                   Release was called                   nobody needs to
//	ErrLost                       the store has another holder         acquire again
//	ErrDeadlinePassed             no renewal came through in time      acquire again; the cause has the last failure
//	ErrFencedOut                  a write's token was refused          acquire again
//	ErrDeleted                    the store's key is gone              find out why; acquire again
//	ErrStoreReplaced              another store answers, such as one   acquire again; nothing that was
//	                              that was restarted without its data  claimed is protected any more
//	ErrConnectionLost             the connection dropped, and an       acquire again
//	                              option says that this is the end
//	transport.ErrClosed           the client was closed                the program is ending
//	transport.ErrSessionTakenOver another process has our client id    the operator: give each its own
//
// A deletion is noticed by a notification, which is a hint: the store is asked before
// anything ends. If it is lost, and nobody took the lease meanwhile, the next renewal
// puts the key back and the tenure goes on.
//
// # When the store is restarted
//
// A store that lost its data knows neither the lease nor the fences of the keys that
// were written under its token. So a tenure never outlives the data of the store that
// granted it. Our stores have an identity, which is new whenever a store starts without
// what an earlier one knew. Every request on behalf of a tenure names that identity,
// another store refuses the request, and the first reply of another store ends the tenure.
// Stores deployed today have no identity: with them a tenure reads its key once on each
// new connection before it renews.
//
// The new store may grant the lease while the holder of the old one has not noticed yet.
// A hold-off (statestore.Options.HoldOff, tenure serve --hold-off) of the longest TTL in
// use keeps it from that.
//
// # In time
//
//	send of the last accepted request                     expiry at the store, at the earliest
//	│                                                                    │
//	├─ RenewEvery ─┬─ retries ─ … ─┬────── GracePeriod ───┬── Margin ────┤
//	               renewal         Context ends           deadline: Token refuses
//
// The margin must be more than the two clocks can drift apart within a TTL. What a set
// of options means for failover is worked out by [Options.Budget].
//
// A request that is not answered within RequestTimeout makes the client's connection
// suspect: the broker has half of that again, and at least 100 ms, for a sign of life, and
// then the client connects anew, and the renewal goes over the new connection. So a
// half-open connection costs a tenure one timeout, whatever the keep-alive, unless the
// tenure ends with its connection.
//
// # Instant failover
//
// After a crash the next holder waits for the TTL, since nobody else can know that the
// holder is dead. The broker can: it sees the connection end. With
// [Options.InstantFailover] the connection carries an MQTT Will that releases the lease,
// and the successor holds it a round trip or two after the process was killed.
//
// For that the lease needs a connection of its own making: Acquire replaces the
// client's connection once for each tenure, and requests of others on that client that
// are under way then end with an unknown outcome. A tenure ends at once when the
// connection drops, since the broker then gives the lease away.
//
// That is a promise less than without it. If only the broker's end of a connection is
// cut, by a proxy between them or because somebody connects with the same client id, the
// lease is given away at once, and the holder learns of it when it next hears nothing
// for an answer: at the latest at its deadline. Guarded writes are refused in that time
// as ever; for actions that cannot be fenced, leave the option off. A store or a broker
// that does not honour such a Will leaves the TTL to decide.
//
// # Values
//
// Values of the store's key are "<holder>:<nonce>", with a nonce for each
// acquisition, so that what an earlier tenure left on the wire cannot touch a
// later one.
//
// # Documents
//
// docs/leases.md shows how to choose the options. docs/invariants.md 1 to 29 and 47 to 54 say what must
// always hold, and name the tests.
package lease
