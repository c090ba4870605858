// Package pair has what the programs that show a failover share: the node of an active/standby
// pair, which counts up a protected key while it leads; the process in which a node or a store
// runs; and the check that no write of a node that no longer led was accepted.
//
// A program has a director, which runs the program again for each node and each store. It reads
// what they write to standard output, kills and freezes them, and compares their events with what
// the store holds in the end.
package pair
