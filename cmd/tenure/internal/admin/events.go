package admin

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	// eventInterval is the least time between two events. A page that follows a store under load
	// costs one rendering in that time, however many pages follow.
	eventInterval = 500 * time.Millisecond
	// quietInterval is after how long an event is sent though nothing changed, so that both ends
	// notice a dead connection.
	quietInterval = 10 * time.Second
	// writeTimeout is how long a client may take to read one event or one answer.
	writeTimeout = 10 * time.Second
	// maxStreams bounds how many clients read events at once.
	maxStreams = 16
)

// streams sends events to the pages that are open. A page gets the newest event when it has read
// the last one: what it missed meanwhile is in the newest one too, so nothing queues for it.
type streams struct {
	readings *readings
	ending   <-chan struct{}
	// patience is how long a client may take to read an event; a test has less.
	patience time.Duration

	mu      sync.Mutex
	readers int
	latest  *event
	wake    chan struct{} // has room for one; a reader has come
}

// event is one event as it is written, and a channel that is closed when there is a newer one. The
// first event has no text.
type event struct {
	text  []byte
	newer chan struct{}
}

func newStreams(readings *readings, ending <-chan struct{}) *streams {
	return &streams{readings: readings, ending: ending, patience: writeTimeout, latest: &event{newer: make(chan struct{})}, wake: make(chan struct{}, 1)}
}

// run renders events while there are readers, until ctx ends.
func (s *streams) run(ctx context.Context) {
	var last []byte
	var sent time.Time
	for {
		if s.isIdle() {
			last = nil
			s.publish(nil)
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
		} else if !sleep.For(ctx, eventInterval) {
			return
		}
		reading, err := s.readings.fresh(ctx, asEvent)
		if err != nil || bytes.Equal(reading.event, last) && reading.now.Sub(sent) < quietInterval {
			continue
		}
		last, sent = reading.event, reading.now
		s.publish(fmt.Appendf(nil, "event: state\ndata: {\"now\":%q,\"state\":%s}\n\n", reading.now.UTC().Format(time.RFC3339Nano), bytes.TrimSpace(last)))
	}
}

func (s *streams) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readers == 0
}

// publish makes text the newest event.
func (s *streams) publish(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	previous := s.latest
	s.latest = &event{text: text, newer: make(chan struct{})}
	close(previous.newer)
}

// enter counts a reader. It returns false if there are too many.
func (s *streams) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers >= maxStreams {
		return false
	}
	s.readers++
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return true
}

func (s *streams) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers--
}

func (s *streams) newest() *event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// ServeHTTP implements http.Handler: server-sent events, until the client or the server ends. A
// client that does not read an event within patience is disconnected.
func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	if !s.enter() {
		refuseReader(w, fmt.Sprintf("%d clients read events already; close another page, or ask /api/state", maxStreams))
		return
	}
	defer s.leave()
	protect(r)
	connection := http.NewResponseController(w)
	write := func(text []byte) bool {
		_ = connection.SetWriteDeadline(time.Now().Add(s.patience))
		if _, err := w.Write(text); err != nil {
			return false
		}
		return connection.Flush() == nil
	}
	// The newest event may be as old as quietInterval. The page needs the present time to show how
	// much time a lease has left.
	if !write(fmt.Appendf(nil, "retry: 1000\nevent: time\ndata: {\"now\":%q}\n\n", time.Now().UTC().Format(time.RFC3339Nano))) {
		return
	}
	for {
		event := s.newest()
		if event.text != nil && !write(event.text) {
			return
		}
		select {
		case <-event.newer:
		case <-r.Context().Done():
			return
		case <-s.ending:
			return
		}
	}
}
