package server

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// errPanicked is why a connection ended whose handling panicked.
var errPanicked = errors.New("the server panicked while it handled the connection")

// maxStack is how much of a stack is logged, in bytes.
const maxStack = 8 << 10

// recoverIn is deferred by the goroutines of a connection other than the one that reads it.
func (s *Server) recoverIn(conn *connection) {
	if value := recover(); value != nil {
		s.handlePanic(conn, value)
	}
}

// handleReadingPanic is handlePanic for the goroutine that reads a connection, when that has
// unwound. It also does what comes where a connection is lost: the Will.
func (s *Server) handleReadingPanic(conn *connection, value any) {
	conn.readTurn.End() // of the turn in which that was
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

// handlePanic ends a connection whose handling panicked. Others go on, because what they
// share is not in doubt: it is changed under locks, by code that panicked elsewhere. Only
// the store is not trusted with that, since a half-applied request would be a wrong answer
// for all. So a panic in it goes on, and ends the process.
func (s *Server) handlePanic(conn *connection, value any) {
	s.notePanic(value, "remote", conn.RemoteAddr().String())
	conn.abort()
}

// notePanic counts and logs a panic, but lets one in the store go on.
func (s *Server) notePanic(value any, attributes ...any) {
	if _, ok := value.(*engine.InDoubt); ok {
		panic(value)
	}
	stack := debug.Stack()
	s.count(func(stats *Stats) { stats.Panics++ })
	s.panics.Log(append(attributes, "panic", fmt.Sprint(value), "stack", string(stack[:min(len(stack), maxStack)]))...)
}

// mayReceive is mayRead for a message that another client has published. If the rules panic,
// they do so because of the receiver: its connection ends, and not that of the publisher,
// whose goroutine this is. The receiver does not get the message.
func (s *Server) mayReceive(conn *connection, topic string) (may bool) {
	if s.topics == nil {
		return s.mayRead(conn.identity, topic) // all of it is code of the server
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
