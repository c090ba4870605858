// Package journal keeps the state of a store in one file, so that it survives a restart, a
// crash and a loss of power.
//
// [Open] takes a directory and returns a [File], which implements [statestore.Journal]. Give it
// to the server:
//
//	file, err := journal.Open("/var/lib/tenure", journal.Options{Logger: logger})
//	…
//	defer file.Close()
//	server, err := server.New(server.Options{Journal: file})
//
// # What it promises
//
// When Commit returns nil, the disk has the batch. A crash at any point leaves the state after the last
// Commit that returned, or the state after the one that was under way. After the first error every Commit
// fails: a disk that failed once is not trusted again. What was committed stays in the file; a new
// process opens it.
//
// One process at a time uses a directory; another one is refused with the process id of the
// holder. The lock ends with its process, however that ends.
//
// Load reads the whole file and believes nothing: each commit has a number and a checksum. A file that
// was cut short, changed or mixed up is refused, never read in part. Only a commit that a crash can have
// left unfinished is cut off: the last one, of a file that no process has closed.
//
// The file only grows. When it is larger than three times what counted at its latest copy, or at the
// start, plus 1 MiB, a copy of what counts is made beside the next commits, which takes a few seconds for
// a million keys, and one of them puts it in place of the file. A commit waits for the copy only if more
// was committed since it began than 32 MiB, and than half of what counted, in proportion to how far the copy
// is; then until the copy goes on. So the file grows by 32 MiB meanwhile, or by what counted if that is more.
//
// [Check], [Export] and [Backup] read the file also while a process has the journal.
//
// # What it does not promise
//
// A disk that loses what it reported as synced loses acknowledged data. So does a file system
// that is mounted without barriers. After a crash a last commit that is damaged looks as if it had not been
// finished, and is cut off; so do several damaged ones at the end, and a missing end, as far as they came
// after the start and the latest copy.
// The journal is a file of one machine: it does not survive the loss of the disk. Keep backups, or use a
// store on several machines.
//
// # The directory
//
//	tenure.log      the records
//	tenure.log.new  a copy while it is made; removed at the next start
//	tenure.lock     the lock
//	tenure.holder   which process has the lock, since which start of the machine, and how large the file
//	                was; a stop removes it
//
// All are readable and writable for their owner only. The file has the values of all keys. Open
// refuses a directory that all users may write to, or that belongs to another user, and a symbolic
// link in place of a file: another user could put other data in place of the store's. It warns if
// a group may write there, or if other users may read the file. The directory itself may be a
// link.
//
// # Errors
//
//	ErrInUse      another process has the directory: stop it, or use another directory
//	ErrDamaged    the file is not what was written: restore a backup
//	ErrForeign    the file belongs to another program, or the directory has other files and no
//	              journal: use another directory
//	ErrNewer      a newer version wrote the file: use that version
//	ErrUnsafe     other users could change the data: change the rights, or use another directory
//	ErrExists     restore or backup would overwrite data: use another name
//	ErrNoData     the directory has no journal: give the directory of the store
//	ErrClosed     the journal was closed
//
// Each error names the file and what to do.
package journal
