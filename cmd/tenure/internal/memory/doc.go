// Package memory decides when the garbage of a process is collected, and returns unused memory to the
// operating system.
//
// [Configure] lets a small heap grow before it is collected, and makes the collector respect a limit.
//
// Go's collector runs when the heap has doubled, or after two minutes, and returns freed
// memory to the system little by little. So a server keeps the memory that a burst of clients
// needed long after they have left. [Release] checks every few seconds whether it could return
// much, and then collects and returns it at once.
//
// Both concern the whole process, so they are for commands. A library must not use them: the
// program around it may have a large heap of its own, which each collection would scan.
package memory
