// Package keywatch watches a key for a loop that also reads the key on a timer.
//
// Notifications only make such a loop faster: they can be lost, and the store can refuse to send
// them. While it refuses, the channel of changes is nil and the timer alone wakes the loop.
package keywatch

import (
	"time"

	"github.com/tenurelock/tenure/transport"
)

// Watch follows one key. It belongs to one goroutine.
type Watch struct {
	begin      func(key string) (*transport.Watch, error)
	key        string
	retryAfter time.Duration

	watch   *transport.Watch // nil before Start
	changes <-chan transport.Change
	began   time.Time
}

// New returns a Watch on key that is not started. begin is Client.Watch, or Client.WatchWaiting. retryAfter is the
// shortest time from one Start that the store refused to the next that asks it again.
func New(begin func(key string) (*transport.Watch, error), key string, retryAfter time.Duration) *Watch {
	return &Watch{begin: begin, key: key, retryAfter: retryAfter}
}

// Start watches the key. It does nothing while the key is watched, and for retryAfter after
// a Start that the store refused. It does not wait for the store. The error comes from
// begin: the client is closed.
func (w *Watch) Start() error {
	if w.changes != nil || w.watch != nil && time.Since(w.began) < w.retryAfter {
		return nil
	}
	watch, err := w.begin(w.key)
	if err != nil {
		return err
	}
	w.Close()
	w.watch, w.changes, w.began = watch, watch.Changes(), time.Now()
	return nil
}

// Changes returns the channel of changes. It is nil while the key is not watched. When it
// is closed, the loop calls Ended.
func (w *Watch) Changes() <-chan transport.Change { return w.changes }

// Ended takes note that the channel was closed, and returns why: a refusal by the store, or
// that the client is closed. A later Start watches the key again.
func (w *Watch) Ended() error {
	w.changes = nil
	return w.watch.Err()
}

// Close ends the watch, if there is one.
func (w *Watch) Close() {
	if w.watch != nil {
		w.watch.Close()
	}
}
