// Package election builds active/standby failover on leases: of all the nodes
// that campaign under one name, one leads, and another takes over when it dies,
// is cut off, is not fit to lead any more, or hands over.
//
//	elector, err := election.New(client, "press-7/active", election.Options{TTL: 2 * time.Second})
//	…
//	err = elector.Run(ctx, func(ctx context.Context, term *election.Term) error {
//		return serve(ctx, term.Guard()) // runs while this node leads; stops when ctx ends
//	})
//
// Run waits for leadership, calls the function, and when the term is over waits
// for the function to return, releases, and campaigns again.
//
// # A term
//
//	Standby ──▶ Claiming ──▶ Active ──▶ Draining ──▶ Released ──▶ Standby …
//	 waits      stamps keys   function   its context  the lease
//	 for the    with the      runs       has ended;   is free
//	 lease      new token                must return
//
// A term ends because its tenure ended (see package lease), because Run's context
// ended, by [Elector.Resign], because the node is unhealthy, because a preferred
// node asked for the lead, or because the function returned. In each case the
// function's context ends first, and the lease is released only when the
// function has returned, so the functions of two nodes do not overlap: unless one
// of them ignores its context for longer than the tenure lasts. The tenure is not
// renewed while the function winds up, so it has until the deadline; then the
// guard refuses its writes and another node may lead.
//
// Claiming is left out where Options.Claim is empty, and what fails before the
// function could start goes straight to Released. Options.Standby runs in Standby
// and must return before anything else happens.
//
// A function of yours that does not return cannot keep the others from leading. While this
// node holds the lease, Run waits for Options.Standby and Options.Observer no longer than
// the tenure lasts without a renewal, and then releases the lease. It waits for the
// leader's function as long as it takes, but lets the tenure run out.
//
// # Refusals
//
// A store or a broker that refuses, a wrong clock or a missing connection does not end Run,
// because most of that passes. The observer gets a Standby with the cause, the node asks
// again with a backoff (see package lease), and the observer gets a Standby without a cause
// when the node only waits for the leader again. A refusal that looks permanent, such as
// one of a request that the store does not understand, does not end Run either: the
// campaign fails, and the next one follows after HoldOff, which doubles up to eightfold.
// Watch Transition.Cause, or [Elector.Leaders], rather than the end of Run.
//
// # Health
//
// Options.Health is called on a schedule of its own, never twice at once, and for
// the first time before the first campaign. Between a failure (an error, a panic,
// or HealthTimeout passing) and the next success the node neither leads nor
// campaigns: a leader drains and hands over with one request, a standby takes its
// candidacy back. A leader that is healthy again stays out for HoldOff more, so
// that one which is well only while it does nothing leaves others their turn.
//
// A check that hangs delays nothing but the end of Run, which waits for it.
//
// # Preferred nodes
//
// A candidate of rank n leaves a vacancy to better ranks for n × RankDelay. That
// is a courtesy among waiters, with nothing at the store behind it: ranks decide
// who leads, never whether two do.
//
// With FailBackAfter a preferred node also gets the lead back from a worse one.
// The scheme needs no more of the store than the lease does:
//
//   - A node that has waited for FailBackAfter, healthy without a break, bids: it
//     sets the key "<name>/bid" to "<client id>:<rank>", with the lease's TTL,
//     refreshes that while it waits, and deletes it when it leads, ends or turns
//     unhealthy. It need not know who leads. A better bid is left standing. While
//     something other than a leader keeps the node from the lease it does not bid.
//   - A leader of a rank other than 0 watches that key once it has led for
//     FailBackAfter, and for TTL at least. A bid of a better rank, confirmed by a
//     GET, ends its term with a [*YieldError]. Then its hold-off and its rank keep
//     it out while the other takes over. Where notifications are lost it sees the
//     bid within a TTL.
//
// Both waits hold the lead down: however often a preferred node crashes, fails or
// turns unhealthy, a node leads for FailBackAfter before it hands over to another.
// One that crashed as the leader and comes back before its old lease expired
// leaves that vacancy to others. A store with access rules must allow the
// candidates to read, set and delete the key for bids; without that there is no
// fail-back, and all else works.
//
// What rank cannot promise: that the best node leads. A vacancy goes to whoever
// reaches the store, so a preferred node that is cut off, slow, or deaf to
// notifications for longer than RankDelay loses it; and without FailBackAfter
// nothing is done about that, nor does a preferred node that crashes and is
// restarted within the TTL leave its vacancy to others. Who may write the key for
// bids can make a leader hand over once in a hold-down.
//
// # What is guaranteed, and what is not
//
// With a live store and a dead leader some candidate leads within TTL and jitter,
// and the delay of its rank; after a clean hand-over within a round trip or two
// and that delay. Two nodes can believe that they lead at the same time only when
// one is stopped, or its clock is wrong, by more than the lease's margin between
// looking and acting. Writes through [Term.Guard] are safe even then.
//
// # When something fails
//
//	what                                cause (errors.Is)         what happens
//	the tenure is lost                  lease.ErrLost and others  drains; campaigns again at once, or if the
//	                                                              term was shorter than TTL, after HoldOff
//	the function returns, or panics     ErrReturned, its error    releases; stays out for HoldOff
//	Resign                              ErrResigned               drains, releases; stays out for HoldOff
//	the health check fails              ErrUnhealthy, its error   drains, releases; stays out until it
//	                                                              succeeds, and HoldOff more
//	a preferred node bids               ErrYielded (*YieldError)  drains, releases; stays out for HoldOff
//	a claim fails                       its error                 releases; stays out for HoldOff
//	the standby function fails          –                         is logged; campaigns on
//	the standby function does not       ErrNotReady               releases; stays out until it has
//	return                                                        returned, and HoldOff more
//	the observer does not return        ErrNotReady, if no        releases; stays out until it has
//	                                    function runs yet         returned, and HoldOff more
//	the observer panics                 –                         is logged
//	the process before this one         ErrCrashed                stays out for TTL + HoldOff; only with
//	crashed as the leader                                         FailBackAfter
//	the store or the broker refuses     transport.ErrNotAuthorized, … Standby with that cause; asks again,
//	the lease, or cannot be asked                                 with a backoff
//	the campaign cannot succeed as the  transport.ErrSyntax, …    Standby with that cause; campaigns again
//	program is                                                    after HoldOff
//	the client is closed or taken over  transport.ErrClosed, …    Run returns it
//
// If the tenure ended first and something else followed, as when a frozen process wakes and
// its function returns, the cause is why the tenure ended.
package election
