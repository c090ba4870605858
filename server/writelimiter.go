package server

import (
	"runtime"
	"sync"
	"time"
)

// stuckAfter is for how long none of those that may write has to be done before they are
// taken to wait for their clients.
const stuckAfter = 10 * time.Millisecond

// post lets few outboxes write at a time, in the order in which they have asked. A change
// that a thousand clients watch would otherwise make a thousand goroutines runnable at once,
// and a request that comes then would wait for all of them. What is queued for an outbox
// while it waits leaves in the same write.
//
// A client that does not read can hold up a write for as long as writeTimeout. So if none is
// done for a while, those that write are not counted any more, and others are let write in
// their place: twice as many each time, until they move on.
//
// It is safe for concurrent use, and has no goroutine.
type writeLimiter struct {
	normal int // that write at a time

	mu      sync.Mutex
	waiting []*outbox // the first first; each is in it once at most
	writing int       // how many were let write in this round, and are not done
	allowed int       // how many may, now
	round   uint64    // counts how often those that write were given up
	latest  time.Time // when one was let write, or was done
	timer   *time.Timer
	timed   bool // timer is running
}

// newPost leaves a processor to those that ask: see turns.New.
func newWriteLimiter() *writeLimiter {
	most := max(runtime.GOMAXPROCS(0)-1, 1)
	return &writeLimiter{normal: most, allowed: most}
}

// ask makes an outbox wait until it may write, and calls its permit then.
func (p *writeLimiter) enqueue(o *outbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, o)
	p.permitLocked()
}

// done says that one that was permitted to write in a round has written.
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
		return
	}
	if p.timed {
		return
	}
	p.timed = true
	if p.timer == nil {
		p.timer = time.AfterFunc(stuckAfter, p.relieve)
		return
	}
	p.timer.Reset(stuckAfter)
}

// mostAllowed is how many outboxes may be taken to be stuck at once.
const mostAllowed = 1024

// relieve gives up those that write if none was done for a while. Where they move on, fewer
// may write from now on.
func (p *writeLimiter) relieve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timed = false
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
