// Package memory gives memory back to the system that a program does not need any more.
//
// Go's collector comes when the heap has doubled, or after two minutes, and what it frees
// goes back to the system little by little. So a server that a burst of clients has filled
// keeps what they took long after they have left. [Release] looks every few seconds whether
// there is much to be gained, and then collects and gives back at once.
//
// This is about the whole process, so it is for a command and not for a library: a program
// that has a server inside may have a heap of its own to collect, and is not to be stopped
// and searched by one of its parts.
package memory
