package server

import (
	"maps"
	"net"
	"slices"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// listen accepts connections until the server stops, and starts a goroutine for each.
func (s *Server) listen() {
	s.handlers.Go(func() {
		if err := s.auth.Accept(s.socket, s.running.Done(), s.lines[lineNotAccepted], s.begin); err != nil {
			s.failed <- err
		}
	})
}

// begin begins a connection that was accepted.
func (s *Server) begin(socket net.Conn) {
	boundBuffers(socket)
	conn := s.newConnection(socket)
	s.accepted++
	conn.number = s.accepted
	if !s.track(conn) {
		closeSocket(socket)
		return
	}
	drop := func() {
		s.countClosed(conn, RefusedUnauthenticated, "hint", unauthenticated.Hint)
		conn.end(endLost)
	}
	var err error
	if conn.pendingAuth, err = s.auth.Add(conn.open, socket, drop); err != nil {
		drop()
	}
	_ = conn.socket.SetReadDeadline(conn.pendingAuth.Deadline()) // fails on a closed connection, as the read will
	s.handlers.Go(func() {
		defer s.forget(conn) // also if a rule of the program ends the goroutine
		conn.serve()
	})
}

// forget ends what the server keeps for a connection that is over.
func (s *Server) forget(conn *connection) {
	conn.pendingAuth.Done()
	conn.finish()
	why := conn.why.Load()
	if why.isFault() {
		s.log(lineFault, "client", logs.Name(conn.identity.Client), "remote", conn.remote, "reason", logs.Error(why))
	}
	s.logger.Debug("connection ended", "remote", conn.remote, "error", logs.Error(why))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, conn)
}

// countClosed counts and logs a connection that is closed before its client has authenticated.
func (s *Server) countClosed(conn *connection, why RefusalReason, attributes ...any) {
	s.refused(why, append([]any{"reason", string(why), "remote", conn.remote}, attributes...)...)
}

// track registers a connection. It reports false if the server is stopping, or if as many are open as descriptors
// allow.
func (s *Server) track(conn *connection) bool {
	s.mu.Lock()
	full := s.sockets > 0 && len(s.connections) >= s.sockets
	tracked := !full && s.running.Err() == nil
	if tracked {
		s.connections[conn] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		s.countClosed(conn, RefusedDescriptors, "limit", s.sockets, "hint", descriptors.Hint)
	}
	return tracked
}

// closeAll closes all connections of a server that stops, and returns when their goroutines have ended.
func (s *Server) closeAll() {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.connections))
	s.mu.Unlock()
	for _, conn := range open {
		conn.abort()
	}
	s.handlers.Wait()
}
