// Package election builds active/standby failover on leases: of all the nodes
// that campaign under one name, one leads, and another takes over when it dies,
// is cut off, or hands over.
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
// ended, by [Elector.Resign], or because the function returned. In each case the
// function's context ends first, and the lease is released only when the
// function has returned, so the functions of two nodes do not overlap: unless one
// of them ignores its context for longer than the tenure lasts. The tenure is not
// renewed while the function winds up, so it has until the deadline; then the
// guard refuses its writes and another node may lead.
//
// # What is guaranteed, and what is not
//
// With a live store and a dead leader some candidate leads within TTL and jitter;
// after a clean hand-over within a round trip or two. Two nodes can believe that
// they lead at the same time only when one is stopped, or its clock is wrong, by
// more than the lease's margin between looking and acting. Writes through
// [Term.Guard] are safe even then.
package election
