package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
)

// standing judges whether this process may answer from memory: from a moment on the clock at which
// the process before it answers nothing any more, until a deadline, which proofs move ahead. Once it
// has ended it does not come back.
type standing struct {
	clock    lease.Clock
	validity time.Duration // of a proof, from when it began: Options.Standing
	from     time.Duration
	deadline atomic.Int64
	life     context.Context // its cause is why the standing ended
	end      context.CancelCauseFunc
	ended    atomic.Bool           // set before life ends
	failure  atomic.Pointer[error] // of the latest proof; nil if it succeeded
	slow     func(time.Duration)   // called for a proof that took more than half of validity
}

// newStanding returns a standing after a proof that began at began.
func newStanding(clock lease.Clock, validity, began, from time.Duration) *standing {
	s := &standing{clock: clock, validity: validity, from: from, slow: func(time.Duration) {}}
	s.deadline.Store(int64(began + validity))
	s.life, s.end = context.WithCancelCause(context.Background())
	return s
}

// A tenth of a wait is added, because clocks do not run at the same rate.
const rateMargin = 10

// answersFrom returns when a process may answer that has won the election, and whose predecessors
// may answer for wait after that. won is not before the moment of the election: each of their
// proofs began before it.
func answersFrom(won, wait time.Duration) time.Duration { return won + wait + wait/rateMargin }

// errTooEarly is why a process that was just elected may not answer yet.
var errTooEarly = errors.New("the former active store may still answer")

// check returns nil while this process may answer from memory.
func (s *standing) check() error {
	if err := s.lasts(); err != nil {
		return err
	}
	if s.clock() < s.from {
		return errTooEarly
	}
	return nil
}

// wait waits until the process before this one answers nothing any more. It returns for how long
// that is so already.
func (s *standing) wait(ctx context.Context) (idle time.Duration, err error) {
	for s.clock() < s.from {
		if !sleep.For(ctx, max(s.from-s.clock(), time.Millisecond)) {
			return 0, context.Cause(ctx)
		}
	}
	return s.clock() - s.from, nil
}

// lasts returns nil until the deadline has passed, which ends the standing.
func (s *standing) lasts() error {
	if s.ended.Load() {
		return s.why()
	}
	for {
		deadline := s.deadline.Load()
		if int64(s.clock()) < deadline {
			return nil
		}
		if s.deadline.Load() == deadline { // not moved while the clock was read
			err := ErrDeadlinePassed
			if last := s.failure.Load(); last != nil {
				err = fmt.Errorf("%w (%v); the latest attempt: %v", err, s.validity, *last)
			}
			// The caller asks for the reason at once, and keep may not have run yet.
			s.over(err)
			return s.why()
		}
	}
}

// prove moves the deadline ahead after a proof that began at began. A proof that comes after
// the deadline proves nothing any more: lasts may have failed already.
func (s *standing) prove(began time.Duration) {
	if s.lasts() == nil {
		s.deadline.Store(max(s.deadline.Load(), int64(began+s.validity)))
	}
}

// over ends the standing. The first cause counts.
func (s *standing) over(cause error) {
	s.ended.Store(true)
	s.end(cause)
}

// why returns why the standing ended, or nil.
func (s *standing) why() error {
	if !s.ended.Load() {
		return nil
	}
	<-s.life.Done() // over ends it next
	return context.Cause(s.life)
}

// proof is the outcome of one attempt to prove the standing.
type proof struct {
	attempt int
	began   time.Duration
	err     error
}

// keep proves the standing until ctx or the standing ends: attempt sends a proof to the n-th
// endpoint from the preferred one and returns its outcome.
//
// A proof is due every fifth of what it is valid for. One that is not answered until the next is
// due is not given up: an etcd that is slow still moves the deadline. So several can be under way,
// each at another endpoint than the one before.
func (s *standing) keep(ctx context.Context, attempt func(ctx context.Context, n uint32) proof) {
	ctx, stop := context.WithCancel(ctx)
	every, retry := s.validity/5, s.validity/40
	outcomes := make(chan proof, maxProofs)
	underWay, number, next := 0, 0, s.clock()
	defer func() { // wait for the goroutines of the attempts
		stop()
		for ; underWay > 0; underWay-- {
			<-outcomes
		}
	}()
	timer := time.NewTimer(every)
	defer timer.Stop()
	failures, silent := uint32(0), uint32(0) // since the last success: failed; unanswered
	for {
		if s.lasts() != nil {
			return
		}
		if now := s.clock(); now >= next && underWay < maxProofs {
			number++
			underWay++
			n, skip := number, silent
			go func() {
				p := attempt(ctx, skip)
				p.attempt = n
				outcomes <- p
			}()
			silent++
			next = now + every
		}
		timer.Reset(max(min(next, time.Duration(s.deadline.Load()))-s.clock(), time.Millisecond))
		select {
		case <-ctx.Done():
			return
		case <-s.life.Done():
			return
		case <-timer.C:
		case p := <-outcomes:
			underWay--
			switch {
			case p.err == nil:
				s.prove(p.began)
				if took := s.clock() - p.began; took > s.validity/2 {
					s.slow(took)
				}
				failures, silent = 0, 0
				s.failure.Store(nil)
			case errors.Is(p.err, ErrDeposed):
				s.over(p.err)
				return
			default:
				s.failure.Store(&p.err)
				failures++
				if p.attempt == number { // nothing later is under way
					silent = 0
					next = min(next, s.clock()+retry*time.Duration(min(failures, 4)))
				}
			}
		}
	}
}

// maxProofs is how many proofs can be under way: as many as are due until the deadline.
const maxProofs = 8
