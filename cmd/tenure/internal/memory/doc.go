// Package memory returns unused memory to the operating system.
//
// Go's collector runs when the heap has doubled, or after two minutes, and returns freed
// memory to the system little by little. So a server keeps the memory that a burst of clients
// needed long after they have left. [Release] checks every few seconds whether it could return
// much, and then collects and returns it at once.
//
// That concerns the whole process, so it is for commands. A library must not do it: the
// program around it may have a large heap of its own, which each collection would scan.
package memory
