package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// span is when a process may answer from memory: from a moment on its clock at which the process before
// it answers nothing any more, until a deadline, which proofs move ahead. It is a value without clock,
// goroutine, channel or lock.
type span struct {
	validity       time.Duration // of a proof, from when it began: Options.Standing
	from, deadline time.Duration
}

// lasts reports whether the deadline has not passed.
func (s span) lasts(now time.Duration) bool { return now < s.deadline }

// left returns how long the process before may still answer. Negative, it is for how long that one
// has answered nothing.
func (s span) left(now time.Duration) time.Duration { return s.from - now }

// proved returns the span after a proof that began at began. A proof that comes after the deadline
// proves nothing any more: lasts may have been false already.
func (s span) proved(now, began time.Duration) span {
	if s.lasts(now) {
		s.deadline = max(s.deadline, began+s.validity)
	}
	return s
}

// standing judges by its span whether this process may answer from memory. Once it has ended it does
// not come back.
type standing struct {
	clock  func() time.Duration
	span   atomic.Pointer[span]
	latest atomic.Pointer[proof]   // that ended; nil before
	life   context.Context         // its cause is why the standing ended
	over   context.CancelCauseFunc // ends the standing; the first cause counts
}

// newStanding returns a standing after a proof that began at began.
func newStanding(clock func() time.Duration, validity, began, from time.Duration) *standing {
	s := &standing{clock: clock}
	s.span.Store(&span{validity, from, began + validity})
	s.life, s.over = context.WithCancelCause(context.Background())
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
	if s.span.Load().left(s.clock()) > 0 {
		return errTooEarly
	}
	return nil
}

// wait waits until the process before this one answers nothing any more. It returns for how long
// that is so already.
func (s *standing) wait(ctx context.Context) (idle time.Duration, err error) {
	for {
		left := s.span.Load().left(s.clock())
		if left <= 0 {
			return -left, nil
		}
		if !sleep.For(ctx, max(left, time.Millisecond)) {
			return 0, context.Cause(ctx)
		}
	}
}

// lasts returns nil until the deadline has passed, which ends the standing.
func (s *standing) lasts() error {
	if why := s.why(); why != nil {
		return why
	}
	for {
		span := s.span.Load()
		if span.lasts(s.clock()) {
			return nil
		}
		if s.span.Load() == span { // not moved while the clock was read
			err := ErrDeadlinePassed
			if latest := s.latest.Load(); latest != nil && latest.err != nil {
				err = fmt.Errorf("%w (%v); the latest attempt: %v", err, span.validity, latest.err)
			}
			// The caller asks for the reason at once, and keep may not have run yet.
			s.over(err)
			return s.why()
		}
	}
}

// why returns why the standing ended, or nil.
func (s *standing) why() error { return context.Cause(s.life) }

// proof is the outcome of one attempt to prove the standing.
type proof struct {
	attempt int
	began   time.Duration
	err     error
}

// proofs decides when a process proves its standing, and what an outcome means. It is a value like
// span: next is a pure function of the time, the value and an outcome.
//
// A proof is due every fifth of what it is valid for. One that is not answered until the next is
// due is not given up: an etcd that is slow still moves the deadline. So several can be under way,
// each at another endpoint than the one before.
type proofs struct {
	span
	due              time.Duration // of the next proof
	sent, underWay   int
	failures, silent uint32 // since the last success: failed; unanswered
}

// maxProofs is how many proofs can be under way: as many as are due until the deadline.
const maxProofs = 8

// proofAction is what to do after next.
type proofAction struct {
	over  error         // not nil: end the standing with this cause
	send  bool          // a proof
	skip  uint32        // send: to the n-th endpoint from the preferred one
	until time.Duration // when to call next if there is no outcome
}

// next returns the value after an outcome, if there is one, and what to do then.
func (p proofs) next(now time.Duration, outcome *proof) (proofs, proofAction) {
	var do proofAction
	if outcome != nil {
		p.underWay--
		switch {
		case outcome.err == nil:
			p.span = p.proved(now, outcome.began)
			p.failures, p.silent = 0, 0
		case errors.Is(outcome.err, ErrDeposed):
			return p, proofAction{over: outcome.err}
		default:
			p.failures++
			if outcome.attempt == p.sent { // nothing later is under way
				p.silent = 0
				p.due = min(p.due, now+p.validity/40*time.Duration(min(p.failures, 4)))
			}
		}
	}
	if do.send, do.skip = p.lasts(now) && now >= p.due && p.underWay < maxProofs, p.silent; do.send {
		p.sent, p.underWay, p.silent, p.due = p.sent+1, p.underWay+1, p.silent+1, now+p.validity/5
	}
	do.until = min(p.due, p.deadline)
	return p, do
}

// keep proves the standing until ctx or the standing ends: attempt sends a proof to the n-th
// endpoint from the preferred one and returns its outcome.
func (s *standing) keep(ctx context.Context, attempt func(ctx context.Context, n uint32) proof) {
	ctx, stop := context.WithCancel(ctx)
	outcomes := make(chan proof, maxProofs)
	proofs := proofs{span: *s.span.Load(), due: s.clock()}
	defer func() { // wait for the goroutines of the attempts
		stop()
		for ; proofs.underWay > 0; proofs.underWay-- {
			<-outcomes
		}
	}()
	timer := time.NewTimer(proofs.validity)
	defer timer.Stop()
	for outcome := (*proof)(nil); ; {
		next, do := proofs.next(s.clock(), outcome)
		if proofs = next; outcome != nil {
			s.span.Store(&next.span)
			s.latest.Store(outcome)
		}
		if do.over != nil {
			s.over(do.over)
			return
		}
		if do.send {
			n := proofs.sent
			go func() {
				p := attempt(ctx, do.skip)
				p.attempt = n
				outcomes <- p
			}()
		}
		if s.lasts() != nil {
			return
		}
		timer.Reset(max(do.until-s.clock(), time.Millisecond))
		outcome = nil
		select {
		case <-ctx.Done():
			return
		case <-s.life.Done():
			return
		case <-timer.C:
		case p := <-outcomes:
			outcome = &p
		}
	}
}
