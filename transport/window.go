package transport

import (
	"context"
	"slices"
	"sync"
)

// window limits the requests that are under way at the same time: from just before they are
// sent until the broker acknowledges them [MQTT-4.9.0-2]. A few slots are reserved for urgent
// requests, which also take each free slot first. Within each kind, requests take their turns
// in order.
type window struct {
	size     int // slots in all
	reserved int // of them for urgent requests

	mu       sync.Mutex
	used     int
	urgent   []chan struct{} // one for each waiting request, in order; closed when it gets a slot
	ordinary []chan struct{} // likewise
}

const (
	// One slot in reservedShare is reserved for urgent requests; none if there are fewer.
	reservedShare = 8
	// maxReserved is how many slots are reserved at most.
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
	w.freeLocked() // the request got the slot at the same moment
	return false
}

// free returns a slot, which another request may take.
func (w *window) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeLocked()
}

func (w *window) freeLocked() {
	w.used = max(w.used-1, 0) // a broker may acknowledge what was not sent
	w.admitLocked(&w.urgent, w.size)
	w.admitLocked(&w.ordinary, w.size-w.reserved)
}

// admitLocked gives slots to the requests that wait in line, while fewer than room are in use.
func (w *window) admitLocked(line *[]chan struct{}, room int) {
	for len(*line) > 0 && w.used < room {
		close((*line)[0])
		*line = slices.Delete(*line, 0, 1)
		w.used++
	}
}
