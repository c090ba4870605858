// Package sharedquota divides a bounded number of bytes among clients, so that clients that do
// not read, never acknowledge, or leave packets incomplete cannot take all of them.
package sharedquota

import (
	"sync"
	"sync/atomic"
)

// Quota is a number of bytes that clients share. Its methods are safe for concurrent use. Use New.
type Quota struct {
	limit int64
	used  atomic.Int64
}

// New returns a quota of limit bytes.
func New(limit int64) *Quota { return &Quota{limit: limit} }

// Take takes bytes for a client that has own bytes of the quota already, and reports false, taking
// nothing, if the client may not have as many more. A client may have at most as much as is left
// for all others, and assured bytes in any case: however many clients take what they can get,
// each other client can have as much. Clients that have no more than what is assured may pass the
// limit together.
func (q *Quota) Take(own, bytes, assured int64) bool {
	for {
		used := q.used.Load()
		if bytes > 0 && own+bytes > max(assured, q.limit-used-bytes) {
			return false
		}
		if q.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// Release gives bytes back.
func (q *Quota) Release(bytes int64) { q.used.Add(-bytes) }

// Used returns how many bytes are taken.
func (q *Quota) Used() int64 { return q.used.Load() }

// Add takes bytes in any case.
func (q *Quota) Add(bytes int64) { q.used.Add(bytes) }

// Users is a Quota that users share, each with all of its connections. Use NewUsers.
type Users struct {
	*Quota

	mu    sync.Mutex
	bytes map[string]int64 // of each user that has any
}

// NewUsers returns a quota of limit bytes.
func NewUsers(limit int64) *Users { return &Users{Quota: New(limit), bytes: make(map[string]int64)} }

// Change takes bytes for a user as Take does, or gives them back if more is negative.
func (u *Users) Change(user string, more, assured int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if more < 0 {
		u.Release(-more)
	} else if !u.Take(u.bytes[user], more, assured) {
		return false
	}
	if u.bytes[user] += more; u.bytes[user] == 0 {
		delete(u.bytes, user)
	}
	return true
}
