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
	answer  *time.Timer // to when this candidate says that it is ready
	request switchover  // which it answers then
	over    *time.Timer // to when the candidates compete by their ranks again
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
			r.answer(ctx, f.request, switchoverReady)
		case change, open := <-key.Changes():
			if !open {
				_ = key.Ended() // a switchover does without notifications only if the rank is not 0
				continue
			}
			f.hear(ctx, change.Entry)
		}
	}
}

// hear acts on a change. A notification may be forged, so it only says when to read the key, and only
// if what it says would matter.
func (f *requestFollower) hear(ctx context.Context, entry transport.Entry) {
	f.answer.Stop()
	r, isSwitchover := parseSwitchover(entry)
	f.mu.Lock()
	term, campaigning, leads := f.term, f.campaigning && f.status.Cause == nil, f.tenure != nil
	f.mu.Unlock()
	switch _, better := f.better(entry); {
	case term != nil:
		if better || isSwitchover && r.tenure == term.tenure.Value() && r.state != switchoverRefused {
			f.obey(ctx, term, f.readRequest(ctx))
		}
		return
	case leads:
		return // about to start or to end
	case !isSwitchover:
		f.over.Stop()
		f.lease.SetAcquireDelay(f.options.Lease.AcquireDelay)
		return
	}
	if r, isSwitchover = parseSwitchover(f.readRequest(ctx)); !isSwitchover {
		return
	}
	switch {
	case r.state == switchoverAsked && campaigning && r.to == "":
		// Of many candidates a few answer.
		f.request = r
		f.answer.Reset(f.options.Lease.AcquireDelay + random.Duration(f.options.TTL/20))
	case r.state == switchoverAsked && campaigning && r.to == f.holderName():
		f.answer.Stop()
		f.run.answer(ctx, r, switchoverReady)
	case r.state == switchoverReady && r.clientID == f.client.ClientID():
		f.lease.SetAcquireDelay(0)
		f.over.Reset(f.readyFor())
	case r.state == switchoverReady:
		// The other one was there a moment ago. Should it not come, this node goes in its turn, before
		// the hold-off of the former leader ends.
		f.lease.SetAcquireDelay(f.options.Lease.AcquireDelay + f.options.TTL/4)
		f.over.Reset(f.readyFor())
	}
}

// readyFor is how long the word of a candidate stands. The leader drains no longer than its tenure lasts.
func (e *Elector) readyFor() time.Duration { return e.options.TTL + e.options.TTL/2 }

// obey ends a term if the entry, an answer of the store, asks for that.
func (e *Elector) obey(ctx context.Context, term *Term, entry transport.Entry) {
	e.mu.Lock()
	yields := term.yields
	e.mu.Unlock()
	if request, better := e.better(entry); better && yields {
		term.cancel(&YieldError{To: request.clientID, Rank: request.rank})
		return
	}
	r, ok := parseSwitchover(entry)
	switch {
	case !ok || r.tenure != term.tenure.Value() || r.state == switchoverRefused:
	case e.options.RefuseSwitchover:
		e.answer(ctx, r, switchoverRefused)
	case r.state == switchoverReady && sleep.For(ctx, e.options.TTL/50): // so that the other candidates have heard it too
		term.cancel(fmt.Errorf("%w: to %q", ErrSwitchover, r.to))
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
		e.options.Logger.Warn("the answer to a switchover could not be written", "election", e.lease.Name(), "error", err)
	}
}
