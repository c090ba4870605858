package server

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// errPanicked is the error of a connection that ended because its goroutine panicked.
var errPanicked = errors.New("the server panicked while it handled the connection")

// maxStack bounds how much of a stack is logged, in bytes.
const maxStack = 8 << 10

// recoverIn is deferred by the goroutine that writes what waits for a connection.
func (s *Server) recoverIn(conn *connection) {
	if value := recover(); value != nil {
		s.handlePanic(conn, value)
	}
}

// guard calls a function of the goroutine that reads the connection. If it panics, the connection ends.
func (c *connection) guard(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			c.readTurn.End() // it may have panicked in a turn
			c.server.handlePanic(c, value)
			err = errPanicked
		}
	}()
	return do()
}

// handlePanic ends the connection of a goroutine that panicked. Other connections go on, since the
// state that they share is intact. After a panic in the store a request may be half applied and all
// later answers wrong: notePanic passes it on, and it ends the process.
func (s *Server) handlePanic(conn *connection, value any) {
	s.notePanic(value, "remote", conn.remote)
	conn.abort()
}

// notePanic counts and logs a panic. It panics again if the panic was in the store.
func (s *Server) notePanic(value any, attributes ...any) {
	if _, ok := value.(*engine.InDoubt); ok {
		panic(value)
	}
	stack := debug.Stack()
	s.count(func(stats *Stats) { stats.Panics++ })
	s.panics.Log(append(attributes, "panic", fmt.Sprint(value), "stack", string(stack[:min(len(stack), maxStack)]))...)
}

// mayReceive is mayRead for a message that another client has published, in the goroutine of the
// publisher. If the rules panic, it ends the connection of the receiver, which is the cause.
func (s *Server) mayReceive(conn *connection, topic string) (may bool) {
	if s.topics == nil {
		return s.mayRead(conn.identity, topic) // calls no code of the program
	}
	defer func() {
		if value := recover(); value != nil {
			s.notePanic(value, "client", logs.Name(conn.identity.Client))
			conn.abort()
			may = false
		}
	}()
	return s.mayRead(conn.identity, topic)
}
