// Package cluster keeps the state of a store in etcd, so that one of several processes can
// serve it and another one can take over.
//
//	candidate, err := cluster.Open(ctx, cluster.Options{Endpoints: endpoints, Address: "gateway-a:8883"})
//	…
//	defer candidate.Close()
//	journal, err := candidate.Campaign(ctx) // waits until this process is the active one
//	…
//	defer journal.Close() // resigns
//	// Give the journal to the server, and stop serving when journal.Done() is closed.
//
// A [Journal] is a [statestore.Journal]. While it lasts, this process is the active store.
//
// # What is guaranteed, and what is not
//
// One process at a time can write. Each transaction compares the create revision of the
// election key, so a process that was deposed writes nothing, however late its request arrives.
// Transactions carry a sequence number that they compare as well, so one whose outcome is
// unknown is repeated until it is known, is applied once, and is never applied after a later one.
//
// One process at a time answers from memory. [Journal.Standing] compares the clock with a
// deadline; no goroutine has to run for it to pass. The active process proves every TTL/8 that
// the election is still its own, and the deadline is TTL − Margin after the moment at which the
// latest proof began. A process that was frozen, suspended or cut off past its deadline answers
// nothing when it goes on. Like a lease, the check cannot keep a process from being stopped
// between the check and the answer; what its clients write then is refused.
//
// A proof is two requests to the same member of etcd: a linearizable read of the election key,
// and then a keep-alive of its lease. The keep-alive alone would prove too little. etcd answers
// it without asking its quorum, so a leader that was frozen, and that has not yet noticed that
// etcd has another leader, extends a lease that the other leader has let expire. The read is
// answered only by a member that has a present leader, so each other leader comes later and
// counts the whole TTL from then.
//
// The rest relies on etcd: data that it acknowledged survives, and it does not revoke a lease
// early. Releases before 3.5.13 can do so when their leader was stuck, and are refused. In later
// ones a leader that was frozen for longer than the TTL can still do so, for some milliseconds
// after it goes on. Then two processes may answer from memory until the former one's next proof,
// TTL/8 later at most. Only the new one can write.
//
// # When etcd changes its leader
//
// A new leader of etcd counts the TTL of each lease from its own election, and adds an election
// timeout (1 s by default). So a lease never ends early, and the active process goes on if it
// reaches the new leader before its deadline, which the default TTL allows. But if the active
// process and the leader of etcd die together, the takeover comes after etcd's election (1 to
// 2 s), the TTL and 1 s more. A clean end of the process has no such delay: it resigns.
//
// # How a journal ends
//
//	cause (errors.Is)   meaning                                       what to do
//	ErrClosed           Close was called                              nothing
//	ErrDeadlinePassed   no proof within TTL − Margin: etcd was out    restart, or Campaign again
//	                    of reach, or this process did not run
//	ErrDeposed          the lease has expired, or the election key    restart, or Campaign again
//	                    was deleted; another process may be active
//	anything else       etcd refused a transaction; the text says why what the text says
//
// # Keys
//
// Below the prefix: "format", which says what the rest is; "active", the election key, under
// the lease; "sequence", the number of the last transaction; and "r/" with the identifier of a
// record. A prefix that holds other keys is refused, and so is one among the records of another
// store. A user of etcd that is restricted needs permission to read and write the range of the
// prefix.
//
// Each user of etcd that may write below the prefix is trusted, like an administrator: it can change
// and delete keys, leases and fences, or depose the active process. A foreign write is noticed where it
// cannot be a record, and where the active process finds its own sequence number changed; nothing
// notices a record that was well forged. Processes with the same prefix are one store: stores that
// have nothing to do with each other need prefixes of their own.
//
// etcd keeps old values until it is compacted. Its operator has to compact it, for example with
// --auto-compaction-mode=periodic --auto-compaction-retention=5m. With Options.Compact, which
// members of package cluster/member ask for, the active process does. Compaction and
// defragmentation do no harm at any time. Where the database is larger than Options.MaxDatabase,
// [Journal.Full] makes the store refuse what needs more room: at etcd's own quota every write would be
// refused, the election's too.
package cluster
