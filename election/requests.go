package election

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// watchAgainAfter is when a watch that the store refused is asked for again.
const watchAgainAfter = time.Minute

// requestFollower obeys the requests at one key: a leader may hand over, and a candidate says
// that it is ready, or lets another one go first. It belongs to one goroutine.
type requestFollower struct {
	*run
	answer    *time.Timer // to when this candidate says that it is ready, if it still is
	answering bool        // the timer runs: a request that is repeated must not start it anew
	over      *time.Timer // to when the candidates compete by their ranks again
}

// followRequests follows the key until ctx ends. One watch serves candidate and leader: a node
// that is idle sends nothing for it but what any watch costs.
func (r *run) followRequests(ctx context.Context) {
	key := keywatch.New(r.client, r.failBackKey(), watchAgainAfter)
	defer key.Close()
	again := time.NewTicker(watchAgainAfter)
	defer again.Stop()
	f := &requestFollower{run: r, answer: time.NewTimer(watchAgainAfter), over: time.NewTimer(watchAgainAfter)}
	defer f.answer.Stop()
	defer f.over.Stop()
	f.answer.Stop()
	f.over.Stop()
	for key.Start() == nil {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-f.over.C:
			r.lease.SetAcquireDelay(r.options.Lease.AcquireDelay)
		case <-f.answer.C:
			f.answering = false
			f.heed(ctx, r.readRequest(ctx), due)
		case change, open := <-key.Changes():
			if !open {
				_ = key.Ended() // a switchover does without notifications only if the rank is not 0
				continue
			}
			f.heed(ctx, change.Entry, notified)
		}
	}
}

// heed acts on what the key holds, or is said to hold.
func (f *requestFollower) heed(ctx context.Context, entry transport.Entry, from source) {
	s, term := f.stance()
	switch do := s.heed(entry, from); do {
	case confirm:
		f.heed(ctx, f.readRequest(ctx), confirmed)
	case answerSoon: // of many candidates a few answer
		if !f.answering {
			f.answering = true
			f.answer.Reset(f.options.Lease.AcquireDelay + random.Duration(f.options.TTL/20))
		}
	case compete, goFirst, goLater:
		f.lease.SetAcquireDelay(s.acquireDelay(do))
		f.over.Reset(f.readyFor())
	default:
		f.obey(ctx, term, do, entry)
	}
}

// readyFor is how long the word of a candidate stands. The leader drains no longer than its tenure lasts.
func (e *Elector) readyFor() time.Duration { return e.options.TTL + e.options.TTL/2 }

// obey ends the present term, or answers a switchover, as the entry asks.
func (e *Elector) obey(ctx context.Context, term *Term, do deed, entry transport.Entry) {
	r, _ := parseSwitchover(entry)
	switch do {
	case yield:
		request, _ := parseFailBackRequest(entry)
		term.cancel(&YieldError{To: request.clientID, Rank: request.rank})
	case refuse:
		e.answer(ctx, r, switchoverRefused)
	case answer:
		e.answer(ctx, r, switchoverReady)
	case handOver:
		if sleep.For(ctx, e.options.TTL/50) { // so that the other candidates have heard it too
			term.cancel(fmt.Errorf("%w: to %q", ErrSwitchover, r.to))
		}
	}
}

// answer replaces a request with the answer of this node.
func (e *Elector) answer(ctx context.Context, r switchover, state string) {
	r.clientID, r.state = e.client.ClientID(), state
	if state == switchoverReady {
		r.to = e.holderName()
	}
	bounded, cancel := context.WithTimeout(ctx, e.requestTimeout())
	defer cancel()
	_, err := e.client.Set(bounded, e.failBackKey(), []byte(r.String()), transport.SetOptions{TTL: e.readyFor()})
	if err != nil && ctx.Err() == nil {
		e.options.Logger.Warn("the answer to a switchover could not be written", "lease", e.lease.Name(), "error", err)
	}
}
