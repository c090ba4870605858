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
// One process at a time can write. Each transaction compares the revision of the election key,
// which changes when another process takes it, so a process that was deposed writes nothing, however
// late its request arrives. Transactions carry a sequence number that they compare as well, so one
// whose outcome is unknown is repeated until it is known, is applied once, and is never applied after
// a later one.
//
// One process at a time answers from memory. A proof is a linearizable read of the election key,
// which costs a round trip to a majority and no write to a disk. One that began at t on the clock of
// this process, and found its own claim in the key, allows answers until t + Options.Standing. A
// proof is due five times as often. [Journal.Standing] compares the clock with this deadline; no
// goroutine has to run for it to pass. The process that takes the key next waits, from the reply to
// its transaction, for the Standing of the process before and a tenth more, which allows for clocks
// whose rates differ. A read that still found the old claim began before that transaction took
// effect, so every deadline that depends on such a read has passed when the wait is over. Nothing
// depends on leases of etcd, on its ticks and votes, or on who leads it: these decide when a takeover
// happens, never whether it is safe.
//
// A process that resigns says so in the key, and then the next one does not wait. Like a lease, the
// check cannot keep a process from being stopped between the check and the answer; what its clients
// write then is refused.
//
// The rest relies on etcd: data that it acknowledged survives, and a linearizable read returns no
// value that was replaced before the read began. Releases in which a pause could make a read stale
// are refused (etcd issue 20418).
//
// # When a process takes over
//
// With Options.Member, a process takes the election key when the member of etcd in its process leads
// etcd. So one election decides both, and nothing has to expire. A member whose process cannot serve
// hands leadership to another one: a witness at once, others after two seconds.
//
// Without it, the active process has a key under a lease of etcd beside the election key, and another
// process takes over when that has expired. A new leader of etcd counts the TTL of each lease from its
// own election, and adds an election timeout. The active process goes on over an election of etcd that
// takes less than Options.Standing.
//
// # How a journal ends
//
//	cause (errors.Is)   meaning                                       what to do
//	ErrClosed           Close was called                              nothing
//	ErrDeadlinePassed   no proof within Standing: etcd was out of     restart, or Campaign again
//	                    reach, or this process did not run
//	ErrDeposed          another process has taken the election key,   restart, or Campaign again
//	                    or this one's lease has expired
//	ErrUnconfirmed      etcd answers reads, but did not confirm a     restart; the member of this
//	                    change within 5 s, or three Standings         process must not lead meanwhile
//	anything else       etcd refused a transaction; the text says why what the text says
//
// # Keys
//
// Below the prefix: "format", which says what the rest is; "active", the election key;
// "alive", under a lease, without Options.Member; "sequence", the number of the last transaction; and
// "r/" with the identifier of a record. A prefix that holds other keys is refused. A user of etcd that is restricted
// needs permission to read and write the range of the prefix.
//
// Each user of etcd that may write below the prefix is trusted, like an administrator: it can change
// and delete keys, leases and fences, or depose the active process. A foreign write is noticed where it
// cannot be a record, and where the active process finds its own sequence number changed; nothing
// notices a record that was well forged. Processes with the same prefix are one store: stores that
// have nothing to do with each other need prefixes of their own.
//
// etcd keeps old values until it is compacted. Its operator has to compact it, for example with
// --auto-compaction-mode=periodic --auto-compaction-retention=5m. With Options.Member the active
// process does. Compaction and
// defragmentation do no harm at any time. Where the database is larger than Options.MaxDatabase,
// [Journal.Full] makes the store refuse what needs more space: at etcd's own quota every write would be
// refused, the election's too.
package cluster
