package server

import (
	"runtime"
	"sync"
	"time"
)

// stuckAfter is how long none of the outboxes that may write has finished before they count as
// stuck, waiting for their clients.
const stuckAfter = 10 * time.Millisecond

// writeLimiter lets a few outboxes write at a time, in the order in which they asked. Otherwise a
// change that a thousand clients watch would make a thousand goroutines runnable at once, for all
// of which a request would wait. What is queued for a waiting outbox leaves in the same write.
//
// A client that does not read can block a write for writeTimeout. So if no write ends for
// stuckAfter, the present ones no longer count: twice as many may write each time, until writes end
// again.
//
// It is safe for concurrent use, and has no goroutine.
type writeLimiter struct {
	normal int // how many may write at a time, unless some are stuck

	mu      sync.Mutex
	waiting []*outbox   // in the order in which they asked; each at most once
	writing int         // how many have begun to write in this round and not finished
	allowed int         // how many may write now
	round   uint64      // counts how often the outboxes that write were declared stuck
	latest  time.Time   // when one began to write or finished
	timer   *time.Timer // calls relieve; nil: it is not running
}

// newWriteLimiter leaves one processor for requests: see fairqueue.New.
func newWriteLimiter() *writeLimiter {
	most := max(runtime.GOMAXPROCS(0)-1, 1)
	return &writeLimiter{normal: most, allowed: most}
}

// enqueue calls permit of an outbox when that may write.
func (p *writeLimiter) enqueue(o *outbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, o)
	p.permitLocked()
}

// done is called when an outbox that was permitted to write in a round has written.
func (p *writeLimiter) done(round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if round == p.round {
		p.writing--
		p.latest = time.Now()
	}
	p.permitLocked()
}

func (p *writeLimiter) permitLocked() {
	for p.writing < p.allowed && len(p.waiting) > 0 {
		next := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		if next.permit(p.round) {
			p.writing++
			p.latest = time.Now()
		}
	}
	if len(p.waiting) == 0 {
		p.waiting = nil
	} else if p.timer == nil {
		p.timer = time.AfterFunc(stuckAfter, p.relieve)
	}
}

// mostAllowed bounds how many outboxes may write at once.
const mostAllowed = 1024

// relieve declares the outboxes that write stuck if none has finished for stuckAfter. Otherwise
// fewer may write from now on.
func (p *writeLimiter) relieve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	if len(p.waiting) == 0 {
		p.allowed = p.normal
		return
	}
	if time.Since(p.latest) >= stuckAfter {
		p.round++
		p.writing = 0
		p.allowed = min(2*p.allowed, mostAllowed)
	} else {
		p.allowed = max(p.allowed/2, p.normal)
	}
	p.permitLocked()
}
