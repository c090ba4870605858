// Package fencing keeps a former leader from writing.
//
// A lease says who may act, but a process can be stopped after it looked, for
// longer than the lease lasts, and then act on what it saw. A fencing token
// closes that gap on the side of the resource: every tenure has one, later
// tenures have greater ones, each write carries its own, and the resource
// refuses a token that is older than one it has seen.
//
// The state store does so for its keys. A [Guard] attaches a tenure's token to
// each write by itself, refuses locally once the tenure is over, and ends the
// tenure as soon as the store answers that a newer token was there:
//
//	guard := fencing.NewGuard(client, tenure)
//	err := guard.Set(ctx, "press-7/setpoint", value)
//
// A new leader should claim before it reads: a write of the old one may still be
// on its way, and only the new token on the key keeps it out.
//
//	entry, err := guard.Claim(ctx, "press-7/setpoint") // stamps the key, then returns what it holds
//
// # What is guaranteed, and what is not
//
// Writes to a key through guards are accepted in the order of their tokens, never
// one of an older tenure after one of a newer. That ends where a key is deleted
// or expires, since the store forgets the token with the key: prefer
// [Guard.Clear] to [Guard.Del]. It says nothing about writes that bypass guards:
// the store requires a token for a protected key, but cannot tell a made-up one.
//
// # Errors
//
//	errors.Is                        meaning                               who recovers, how
//	transport.ErrFencingTokenLower   a newer tenure wrote; ours is ended   acquire again
//	lease.ErrReleased and the like   the tenure is over; nothing was sent  acquire again
//	transport.ErrOutcomeUnknown      the write may have happened           read, or write again
package fencing
