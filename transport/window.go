package transport

import (
	"context"
	"slices"
	"sync"
)

// window counts the requests that may be under way at the same time: from when they are
// about to be sent until the broker acknowledges them [MQTT-4.9.0-2]. A few slots are
// kept for urgent requests, which take each free slot first; within each kind requests
// take their turns in order.
type window struct {
	size     int // slots in all
	reserved int // of them for urgent requests

	mu       sync.Mutex
	used     int
	urgent   []chan struct{} // of the requests that wait, in order; closed when one gets a slot
	ordinary []chan struct{} // likewise
}

const (
	// One slot in reservedShare is kept for urgent requests: none of fewer slots than that.
	reservedShare = 8
	// maxReserved is how many slots are kept at most.
	maxReserved = 16
)

func newWindow(size int) *window {
	return &window{size: size, reserved: min(size/reservedShare, maxReserved)}
}

// acquire waits for a slot and reports whether it got one before ctx ended or down was
// closed.
func (w *window) acquire(ctx context.Context, down <-chan struct{}, urgent bool) bool {
	line, room := &w.ordinary, w.size-w.reserved
	if urgent {
		line, room = &w.urgent, w.size
	}
	w.mu.Lock()
	if len(*line) == 0 && w.used < room {
		w.used++
		w.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	*line = append(*line, turn)
	w.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	case <-down:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := slices.Index(*line, turn); at >= 0 {
		*line = slices.Delete(*line, at, at+1)
		return false
	}
	w.freeLocked() // it got the slot at the same moment
	return false
}

// free lets another request have a slot.
func (w *window) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeLocked()
}

func (w *window) freeLocked() {
	w.used = max(w.used-1, 0) // a broker may acknowledge what was not sent
	w.admitLocked()
}

func (w *window) admitLocked() {
	for len(w.urgent) > 0 && w.used < w.size {
		w.admitFirstLocked(&w.urgent)
	}
	for len(w.ordinary) > 0 && w.used < w.size-w.reserved {
		w.admitFirstLocked(&w.ordinary)
	}
}

func (w *window) admitFirstLocked(line *[]chan struct{}) {
	close((*line)[0])
	*line = slices.Delete(*line, 0, 1)
	w.used++
}
