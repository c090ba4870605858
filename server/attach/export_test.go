package attach

import "time"

// Alone lets a store that is not served yet believe that no store will object to it.
func (s *Store) Alone() { s.objectionWait = 0 }

// Impatient lets a store that is not served yet wait for one that is silent for d only.
func (s *Store) Impatient(d time.Duration) {
	s.silence = func(time.Duration) time.Duration { return d }
}

// Busy lets the request that a store has begun with take until resume is called.
func (s *Store) Busy() (resume func()) {
	s.clients.mu.Lock()
	return s.clients.mu.Unlock
}
