package admin

import "time"

// The bounds, for tests.
const (
	MaxStreams     = maxStreams
	MaxConnections = maxConnections
	MaxNames       = maxNames
	MaxAnswers     = maxAnswers
)

// SetPatience sets how long a client may take to read an event. It is called before Serve.
func (s *Server) SetPatience(d time.Duration) { s.streams.patience = d }

// Streams returns how many clients read events.
func (s *Server) Streams() int {
	s.streams.mu.Lock()
	defer s.streams.mu.Unlock()
	return s.streams.readers
}
