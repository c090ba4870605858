// Package fencing keeps a former leader from writing.
//
// A lease says who may act, but a process can be stopped after it looked, for
// longer than the lease lasts, and then act on what it saw. A fencing token
// closes that gap on the side of the resource: every tenure has one, later
// tenures have greater ones, each write carries its own, and the resource
// refuses a token that is older than one it has seen.
//
// # Which to use
//
//	what is protected                        who compares tokens   use
//	a key of the state store                 the store             Guard
//	a row of a database                      the row's UPDATE      SortableText
//	a file, a machine, any other resource    a process before it   Checker
//	the same, behind HTTP or MQTT            that process          SetHeader, UserProperty, and Checker there
//
// # Guard
//
// The store compares tokens for its keys. A [Guard] attaches a tenure's token to
// each write by itself, refuses locally once the tenure is over, and ends the
// tenure as soon as the store refuses its token:
//
//	guard := fencing.NewGuard(client, tenure)
//	version, err := guard.Set(ctx, "press-7/setpoint", value)
//
// A new leader should claim before it reads: a write of the old one may still be
// on its way, and only the new token on the key keeps it out.
//
//	entry, err := guard.Claim(ctx, "press-7/setpoint") // stamps the key, then returns what it holds
//	entries, err := guard.ClaimAll(ctx, keys...)       // the same for many
//
// To change what a key holds, let [Guard.Update] claim, read and set it:
//
//	version, err := guard.Update(ctx, "press-7/parts", func(old transport.Entry) ([]byte, error) {
//		return addOne(old.Value)
//	})
//
// # Checker
//
// Where nothing compares tokens yet, a [Checker] does so, in the one process
// through which all writes to the resource pass:
//
//	checker, err := fencing.NewChecker("press-7", fencing.CheckerOptions{
//		Highest: stored, // what Persist made durable before the restart
//		Persist: store,  // makes a token durable before its first write is admitted
//	})
//	err = checker.Do(ctx, token, func() error { return press.Move(42) })
//
// The writer sends its token along with [SetHeader] or [UserProperty], and the
// process takes it out with [TokenFromHeader] or [TokenFromUserProperties]. A writer
// that is told that its token is stale has to end its tenure, as a Guard does by
// itself: lease.Tenure.FencedOut.
//
// # What is guaranteed, and what is not
//
//   - Writes to a key through guards are accepted in the order of their tokens, never
//     one of an older tenure after one of a newer. That ends where a key is deleted
//     or expires, since the store forgets the token with the key: prefer
//     [Guard.Clear] to [Guard.Del]. A store in strict mode does not forget.
//   - Writes through [Checker.Do] run in the order of their tokens, over restarts too
//     if Persist does what it says. After [Checker.Admit] alone they may not: between
//     the admission and the write there is time for a newer one.
//   - Equal tokens are not ordered. The writers of one tenure have to agree among
//     themselves; [Guard.Update] helps those that share a guard. A write of unknown
//     outcome may take effect after later writes of the same tenure, but not after a
//     claim of the next.
//   - Nothing is said about writes that bypass guards and checkers. The store requires
//     a token for a protected key, but neither it nor a Checker can tell a made-up
//     one, except that a strict store refuses those it has not issued. Authenticate
//     writers.
//   - What [Guard.Get] returns may be out of date when it returns. What a claim
//     returned stays true until this tenure changes it, or another begins.
//
// # Errors
//
//	errors.Is                                meaning                                   who recovers, how
//	transport.ErrOutcomeUnknown              the write may have happened, or may yet   read, or write again; see Guard.Update
//	ErrStaleToken                            a newer tenure wrote; ours is over        acquire again
//	  (= transport.ErrFencingTokenLower)
//	transport.ErrFencingTokenNeverIssued,    the token is not of this store, or the    acquire again; find out what
//	transport.ErrFencingTokenTooFarAhead,    store lost its memory or its time         happened to the store
//	transport.ErrOtherStore
//	ErrLeaseKey                              the key belongs to the lease itself       the program
//	lease.ErrReleased and the like           the tenure is over; unless the outcome    acquire again
//	                                         is unknown, nothing was written
//	transport.ErrNotSent                     nothing was written                       try again
//	ErrNotAdmitted                           a Checker did not run the write           as the other errors in the chain say
//	ErrMissingToken                          there is no token; a Guard's got lost on  the writer; for a Guard, whoever runs
//	  (= transport.ErrFencingTokenRequired)  the way to the store                      the broker
//	ErrRepeatedToken                         there are several tokens                  the writer, or whoever runs the proxy
//	hlc.ErrMalformed                         what is there is no token                 the writer
//
// ErrStaleToken, ErrFencingTokenNeverIssued, ErrFencingTokenTooFarAhead and
// transport.ErrOtherStore end the tenure of a Guard by themselves, with the refusal as the
// cause; no other error does, and nothing is tried again with another token. A refusal
// names its facts: [*StaleTokenError] for a Checker, [*transport.RefusedError] for the
// store.
package fencing
