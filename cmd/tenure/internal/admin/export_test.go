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

// Reader returns what makes a reading for a form of answers, and returns its bytes.
func Reader(options Options, name string) func(now time.Time) (int, error) {
	v := &view{options: options}
	forms := map[string]form{"metrics": asState, "answer": asAnswer, "event": asEvent}[name]
	return func(now time.Time) (int, error) {
		r, err := v.read(now, forms)
		if err != nil {
			return 0, err
		}
		return len(r.answer) + len(r.event), nil
	}
}
