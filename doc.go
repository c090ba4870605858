// Package tenure is an overview of the module; it exports nothing.
//
// Tenure gives distributed programs leases, fencing tokens and active/standby
// failover over MQTT 5. Begin with the package that does most for you:
//
//   - [github.com/tenurelock/tenure/election]: one node of several leads; another
//     takes over when it crashes, is cut off, or hands over.
//   - [github.com/tenurelock/tenure/lease]: one process at a time holds a name.
//   - [github.com/tenurelock/tenure/fencing]: writes that carry the holder's token,
//     so that a former holder cannot write.
//   - [github.com/tenurelock/tenure/transport]: the client of the state store that
//     the others use, and [github.com/tenurelock/tenure/transport/transporttest],
//     with which a program tests them in virtual time.
//
// The module github.com/tenurelock/tenure/server has the store itself, behind a
// broker of its own or attached to another broker; package statestore has its rules.
//
// # Errors
//
// One vocabulary serves the whole library. Test sentinels with errors.Is, and get
// facts with errors.As.
//
//	question                            answer
//	did the store act on my request?    transport.ErrOutcomeUnknown: perhaps; any other error: no
//	what did the store say?             *transport.RefusedError, or its sentinels: transport.ErrNotAuthorized, …
//	which process holds the lease?      *lease.HeldError
//	why did my tenure end?              context.Cause: lease.ErrReleased, ErrLost, ErrDeadlinePassed, ErrFencedOut, …
//	why did my term end?                the same, and election.ErrResigned, election.ErrReturned, …
//	can this client still succeed?      transport.ErrClosed, transport.ErrSessionTakenOver: no
//
// # Documents
//
// In the repository, docs/protocol.md is the norm of the wire, docs/invariants.md lists
// what must always hold, and CONTRIBUTING.md shows how the packages work together.
package tenure
