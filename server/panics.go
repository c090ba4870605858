package server

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// errPanicked is the error of a connection that ended because its goroutine panicked.
var errPanicked = errors.New("the server panicked while it handled the connection")

// maxStack bounds how much of a stack is logged, in bytes.
const maxStack = 8 << 10

// errExited stands for the value of a panic if a rule of the program has called runtime.Goexit.
var errExited = errors.New("a function of the program has called runtime.Goexit")

// guard calls a function of a goroutine of the connection, which uses the turns of a place. If it panics, the
// connection ends. runtime.Goexit goes on after guard, with what its callers have deferred.
func (c *connection) guard(turn *fairqueue.Place, do func() error) (err error) {
	returned := false
	defer func() {
		value := recover()
		if returned {
			return
		}
		if value == nil {
			value = errExited
		}
		turn.End() // it may have panicked in a turn
		c.server.handlePanic(c, value)
		err = errPanicked
	}()
	err = do()
	returned = true
	return err
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
