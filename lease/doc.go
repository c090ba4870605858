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
// # How a tenure ends
//
//	cause (errors.Is)            meaning                             who recovers, how
//	ErrReleased                  Release was called                  nobody needs to
//	ErrLost                      the store has another holder        acquire again
//	ErrDeadlinePassed            no renewal came through in time     acquire again
//	ErrFencedOut                 a write met a newer token           acquire again
//	transport.ErrClosed          the client was closed               the program is ending
//	transport.ErrSessionTakenOver another process has our client id  the operator: give each its own
//
// # In time
//
//	send of the last accepted request                     expiry at the store, at the earliest
//	│                                                                    │
//	├─ RenewEvery ─┬─ retries ─ … ─┬───────── Notice ─────┬── Margin ────┤
//	               renewal         Context ends           deadline: Token refuses
//
// Values of the store's key are "<holder>:<nonce>", with a nonce for each
// acquisition, so that what an earlier tenure left on the wire cannot touch a
// later one.
package lease
