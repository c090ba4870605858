// Package election builds active/standby failover on leases. All nodes that campaign under
// one name are candidates. One of them leads. Another one takes over when the leader dies,
// is cut off, becomes unhealthy or hands over.
//
//	elector, err := election.New(client, "press-7/active", election.Options{TTL: 2 * time.Second})
//	…
//	err = elector.Run(ctx, func(ctx context.Context, term *election.Term) error {
//		return serve(ctx, term.Guard()) // runs while this node leads; stops when ctx ends
//	})
//
// Run waits for leadership and calls the function. When the term is over it waits for the
// function to return, releases the lease, and campaigns again. [Elector.Status] says at any
// time what the node does, which node leads, and why this one does not.
//
// # A term
//
//	Standby ──▶ Claiming ──▶ Active ──▶ Draining ──▶ Released ──▶ Standby …
//	 waits      stamps keys   function   its context  the lease
//	 for the    with the      runs       has ended;   is free
//	 lease      new token                must return
//
// A term ends when its tenure ends (see package lease), when Run's context ends, by
// [Elector.Resign], when the node becomes unhealthy, when a preferred node asks for the
// lead, by [Switchover], or when the function returns. In each case the function's context ends first, and
// the lease is released only when the function has returned. So the functions of two nodes
// do not overlap, unless one of them ignores its context for longer than the tenure lasts.
// The tenure is not renewed in Draining: the function has until the deadline to return.
// After that the guard refuses its writes, and another node may lead.
//
// Claiming is left out if Options.Claim is empty. A term that fails before the function starts
// goes straight to Released.
//
// A function that does not return cannot keep other nodes from leading. While this node holds
// the lease, Run waits for the leader function alone, and lets the tenure run out.
//
// # Refusals
//
// A refusal by the store or the broker, a wrong clock or a missing connection does not end
// Run, because most of these pass. The Observer gets a Standby with the cause, and the node
// asks again with a backoff (see package lease). When the node only waits for the leader
// again, the Observer gets a Standby without a cause. A refusal that looks permanent, such
// as a syntax error, does not end Run either: the campaign fails, and the next one follows
// after HoldOff, which doubles up to eightfold. So watch Status, rather than the end of Run. To
// follow which node leads, in any program, use [lease.Lease.Observe].
//
// # Health
//
// Options.Health is called before the first campaign and then on a schedule of its own. After a
// failure (an error, a panic, or HealthTimeout passing) the node is unhealthy until the next
// success. It then neither leads nor campaigns: a leader drains and hands over with one
// request. A leader that is healthy again stays out for HoldOff more, so that a node which is
// healthy only while it does nothing leaves others their turn. A check that does not return
// delays nothing but the end of Run.
//
// # Preferred nodes
//
// A candidate of rank n waits n × TTL/8 for better ranks before it takes a lease that is
// free. The store knows nothing of ranks: they decide which node leads, never whether two do.
//
// With FailBackAfter a preferred node also gets the lead back from a worse one. That needs
// no more of the store than the lease does:
//
//   - A node that has waited for FailBackAfter, healthy without a break, asks for the lead: it
//     sets the key "<name>/bid" to its client id and rank, with the lease's TTL. It refreshes
//     this fail-back request while it waits, and deletes it when it leads, ends or becomes
//     unhealthy, or while something other than a leader keeps it from the lease. It need not know
//     which node leads. It leaves the request of a better rank alone.
//   - A leader of a rank other than 0 watches that key once it has led for FailBackAfter, and
//     for TTL at least. A request of a better rank, confirmed by a GET, ends its term with
//     ErrYielded. Then its hold-off and its rank keep it out while the other node takes
//     over. If notifications are lost, it sees the request within a TTL.
//
// Both waits hold the lead down: however often a preferred node crashes, fails or becomes
// unhealthy, a node leads for FailBackAfter before it hands over, and a node that crashed as
// the leader stays out at first (see Options.FailBackAfter). If the store has access rules,
// they must allow the candidates to read, set and delete the key of the request. Otherwise
// there is no fail-back, and all else works.
//
// Ranks do not promise that the best node leads. A free lease goes to the first node that
// reaches the store. A preferred node that is cut off, slow, or without notifications for
// longer than TTL/8 loses it, and without FailBackAfter does not get it back. Without
// FailBackAfter a preferred node that crashes, and is restarted within the TTL, takes the
// lease again each time. A client that may write the key of the request can make a leader
// hand over once in a hold-down, and by a switchover at any time.
//
// # Planned hand-over
//
// [Switchover] makes the leader hand over to a candidate by name, or to any other. It uses the same key,
// "<name>/bid", which each elector watches:
//
//   - Switchover sets the key to a request that names the tenure that is to end, so that the request has no
//     effect on a later one. It repeats the request each second; it expires 3 s after the last.
//   - The candidate that is asked, if it is healthy and waits for the lease, replaces the request with its
//     word that it is ready. Only then, confirmed by a GET, the leader's term ends, with ErrSwitchover.
//   - The candidate that is ready takes the lease without the delay of its rank, and the others wait TTL/4
//     longer than their ranks say. The word stands for 1.5 TTL.
//
// It does not wait for hold-downs. With FailBackAfter a preferred node asks for the lead again afterwards.
//
// # What is guaranteed, and what is not
//
// With a live store and a dead leader some candidate leads within TTL and jitter, and the delay
// of its rank; after a clean hand-over within a round trip or two and that delay. Two nodes can
// believe that they lead at the same time only if one of them stands still, or its clock is
// wrong, by more than the lease's margin between a check and the action. Writes through
// [Term.Guard] are safe even then.
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
//	a preferred node asks for the lead  ErrYielded                drains, releases; stays out for HoldOff
//	a switchover is asked for           ErrSwitchover             drains, releases; stays out for HoldOff
//	a claim fails                       its error                 releases; stays out for HoldOff
//	the observer does not return        –                         leads, and then stays out until it has
//	the observer panics                 –                         is logged
//	the process before this one         ErrCrashed                stays out for TTL + HoldOff; only with
//	crashed as the leader                                         FailBackAfter
//	the store or the broker refuses     transport.ErrNotAuthorized, … Standby with that cause; asks again,
//	the lease, or cannot be asked                                 with a backoff
//	the campaign cannot succeed as the  transport.ErrLockRule, …  Standby with that cause; campaigns again
//	program is                                                    after HoldOff
//	the client is closed or taken over  transport.ErrClosed, …    Run returns it
//
// If the tenure ended first and something else followed, as when a frozen process wakes and
// its function returns, the cause is why the tenure ended.
//
// # Documents
//
// docs/embed.md shows how to choose the options, docs/invariants.md 25 to 29 and 50 say what must
// always hold.
package election
