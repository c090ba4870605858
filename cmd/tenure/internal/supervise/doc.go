// Package supervise runs one program under a lease, and makes sure that the program and all that
// it started are gone before the lease is.
//
// Three processes take part, all of the same executable at first:
//
//	supervisor   has the lease, and calls Run
//	  └─ guard   parent of the program; holds the deadline, and kills when it passes
//	       └─ program, in a process group of its own, with its descendants
//
// The supervisor tells the guard each new deadline over a socket; the program starts with the first
// one, which answers a guard that is ready. The guard ends the program when the supervisor says so,
// when the supervisor is gone (its end of the socket closes), and when the deadline comes near and
// no later one was told: then the supervisor is frozen, or cannot renew.
// The supervisor kills the program itself when the guard is gone or does not act.
//
// On Linux both are child subreapers. A descendant that leaves the process group, by setsid or by a
// double fork, becomes a child of the guard or, without a guard, of the supervisor, and is found in
// /proc, which must belong to this PID namespace (CanSupervise).
// The program has PR_SET_PDEATHSIG: it dies with its guard. The guard's timer counts the time in
// which the machine was suspended. Elsewhere, a descendant that leaves the group is not found.
//
// # What is not guaranteed
//
//   - If supervisor and guard are both killed by SIGKILL at once, the program dies too (on Linux),
//     but what it started can live on. The same holds if both are stopped: nothing acts until one
//     continues. A service manager that kills or freezes a whole control group gets all of them.
//   - A machine that was suspended may run the program for a moment before the guard.
//   - With Options.Connection, a broker that ends the connection releases the lease at the moment at
//     which the guard sees the end, and kills: the order is not certain.
//   - A program with other rights, such as sudo, cannot be killed by a guard without these rights.
//   - A descendant that forks and ends faster than /proc can be read is caught late.
//
// In each of these cases fencing tokens protect what the program writes to.
package supervise
