// Package fencing keeps a former leader from writing.
//
// A lease says which process may act. But a process can check its lease, stop for longer than
// the lease lasts, and then act on the old answer. A fencing token closes that gap at the
// resource: each tenure has a token, later tenures have higher tokens, each write carries the
// token of its tenure, and the resource refuses a token that is lower than one it has seen.
//
// # Which to use
//
//	protected resource                       tokens are compared by   use
//	a key of the state store                 the store                Guard
//	a row of a database                      the UPDATE of the row    SortableText
//	a file, a machine, any other resource    one process before it    Checker
//	the same, behind HTTP or MQTT            that process             SetHeader or UserProperty, and a Checker there
//
// # Guard
//
// The store compares tokens for its keys. A [Guard] adds a tenure's token to each write,
// refuses writes locally once the tenure is over, and ends the tenure as soon as the store
// refuses its token:
//
//	guard := fencing.NewGuard(client, tenure)
//	version, err := guard.Set(ctx, "press-7/setpoint", value)
//
// A new leader should claim a key before it reads: a write of the old leader may still be
// under way, and only the new token on the key keeps it out.
//
//	entry, err := guard.Claim(ctx, "press-7/setpoint") // protects the key with the token, and returns its value
//	entries, err := guard.ClaimAll(ctx, keys...)       // the same for many keys
//
// To change the value of a key, use [Guard.Update]. It claims, reads and sets the key:
//
//	version, err := guard.Update(ctx, "press-7/parts", func(old transport.Entry) ([]byte, error) {
//		return addOne(old.Value)
//	})
//
// # Checker
//
// If the resource itself cannot compare tokens, a [Checker] does it, in the one process that
// all writes to the resource pass through:
//
//	store, err := fencing.OpenFileStore("/var/lib/press-7/fence")
//	checker, err := fencing.NewChecker("press-7", store.Highest(), store.Persist)
//	// It stores each new token before the first write with it is admitted.
//	err = checker.Do(ctx, token, func() error { return press.Move(42) })
//
// A [FileStore] keeps the highest token in a file, for one process at a time. A program that has
// a better place for it, such as the resource itself, gives functions of its own.
//
// The writer sends its token with [SetHeader] or [UserProperty], and the process reads it
// with [TokenFromHeader] or [TokenFromUserProperties]. A writer with a token that is refused as
// stale has to end its tenure with lease.Tenure.FencedOut. A Guard does that by itself.
//
// # What is guaranteed, and what is not
//
//   - The store accepts writes to a key through guards in the order of their tokens, and
//     never a write of an older tenure after one of a newer tenure. That ends when the key
//     is deleted or expires, because the store drops the token with the key: prefer
//     the empty value to [Guard.Del]. A store in strict mode keeps the token.
//   - Writes through [Checker.Do] run in the order of their tokens, also over restarts if
//     the tokens are stored durably. After [Checker.Admit] alone they may not: between the
//     admission and the write there is time for a newer write.
//   - Equal tokens are not ordered. The writers of one tenure have to agree among themselves;
//     [Guard.Update] orders updates through the same guard. A write of unknown outcome may take
//     effect after later writes of the same tenure, but not after a claim of the next.
//   - Writes that bypass guards and checkers are not ordered. The store requires a token
//     for a protected key, but neither the store nor a Checker can recognize a forged
//     token. (A strict store refuses tokens that it has not issued.) Authenticate writers.
//   - The result of [Guard.Get] may be out of date when it returns. The result of a claim
//     stays true until this tenure changes the key, or another tenure begins.
//
// # Errors
//
//	errors.Is                                meaning                                   what to do
//	transport.ErrOutcomeUnknown              the write may have happened, or may yet   read, or write again;
//	                                                                                   see Guard.Update
//	ErrStaleToken                            a newer tenure wrote; this one is over    acquire again
//	  (= transport.ErrFencingTokenLower)
//	transport.ErrFencingTokenNeverIssued,    another store issued the token, or the    acquire again; find out what
//	transport.ErrFencingTokenTooFarAhead,    store lost its data or its time           happened to the store
//	transport.ErrOtherStore
//	ErrLeaseKey                              the key belongs to the lease itself       correct the program
//	lease.ErrReleased and the like           the tenure is over; unless the outcome    acquire again
//	                                         is unknown, nothing was written
//	transport.ErrNotSent                     nothing was written                       try again
//	ErrNotAdmitted                           a Checker did not run the write           see the other errors in the chain
//	ErrInUse, ErrDamaged                     a FileStore cannot be opened              its error says what to do
//	ErrMissingToken                          there is no token, or a Guard's token     correct the writer, or the
//	  (= transport.ErrFencingTokenRequired)  got lost on the way to the store          broker between
//	ErrRepeatedToken                         there are several tokens                  correct the writer, or the
//	                                                                                   proxy between
//	hlc.ErrMalformed                         the text is not a token                   correct the writer
//
// [Guard] says which of them end its tenure, with the refusal as the cause. It never repeats a
// write with another token. [*StaleTokenError] has the facts of a refusal by a Checker,
// [*transport.RefusedError] of one by the store.
//
// # Documents
//
// docs/protocol.md §4 has the rules by which the store compares tokens, docs/invariants.md 11 to 17
// what must always hold.
package fencing
