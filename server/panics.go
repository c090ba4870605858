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

// recoverIn is deferred by each goroutine of a connection but the one that reads it.
func (s *Server) recoverIn(conn *connection) {
	if value := recover(); value != nil {
		s.handlePanic(conn, value)
	}
}

// handleReadingPanic is handlePanic for the goroutine that reads a connection, after its stack is
// unwound. It also applies or publishes the Will, since the connection is lost.
func (s *Server) handleReadingPanic(conn *connection, value any) {
	conn.readTurn.End() // it may have panicked in a turn
	s.handlePanic(conn, value)
	cl := conn.inbound.client
	if cl == nil || conn.disconnected.Load() {
		return
	}
	defer conn.readTurn.End()
	defer s.recoverIn(conn) // the Will may be what panics
	s.applyWill(cl, conn)
	s.publishOrDelayWill(cl, conn, endsWithConnection(cl))
}

// handlePanic ends the connection of a goroutine that panicked. Other connections go on, since the
// state that they share is intact. After a panic in the store a request may be half applied and all
// later answers wrong: notePanic passes it on, and it ends the process.
func (s *Server) handlePanic(conn *connection, value any) {
	s.notePanic(value, "remote", conn.RemoteAddr().String())
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
