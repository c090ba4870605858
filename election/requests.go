package election

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// request is what the key of requests holds. Its value begins with the client id, because a strict store
// wants that for keys under lock prefixes.
type request struct {
	clientID string // which wrote it
	state    state
	rank     int // preferred: of the node
	// tenure is, for a switchover, the value of the lease's key that is to end. So the request has no effect on
	// any other tenure, however late it is read.
	tenure string
	to     string // switchover: the holder that is to lead; empty: any other
}

// state is the kind of a request.
type state string

const (
	preferred state = "rank"   // a healthy preferred node keeps asking for the lead while it waits
	asked     state = "asked"  // a switchover; the one that asks has written it
	ready     state = "ready"  // a switchover; a candidate that campaigns and is healthy has written it
	unread    state = "unread" // the key could not be read
)

func (r request) String() string {
	return r.clientID + ":" + url.Values{"state": {string(r.state)}, "rank": {strconv.Itoa(r.rank)},
		"tenure": {r.tenure}, "to": {r.to}}.Encode()
}

// parseRequest reads the value of the key. Any client may have written it: what makes no sense is no request.
func parseRequest(entry transport.Entry) request {
	value := string(entry.Value)
	colon := strings.LastIndexByte(value, ':')
	values, err := url.ParseQuery(value[colon+1:])
	rank, noRank := strconv.Atoi(values.Get("rank"))
	r := request{state: state(values.Get("state")), rank: rank, tenure: values.Get("tenure"), to: values.Get("to")}
	if colon < 0 || err != nil || noRank != nil || rank < 0 ||
		r.state != preferred && r.state != asked && r.state != ready {
		return request{}
	}
	r.clientID = value[:colon]
	return r
}

// replaces reports whether the request of a preferred node may take the place of what the key holds, or refresh
// it. Another one stays if it has the same effect, or is a switchover, which expires soon.
func (r request) replaces(other request) bool {
	return other.state == "" || other == r || other.state == preferred && other.rank > r.rank
}

// stance is what a node is to requests. It is a value: decide is a pure function.
type stance struct {
	options     *Options
	clientID    string
	tenure      string        // the value of the tenure of the term; empty: there is no term
	holds       bool          // the node has the lease; without a term one is about to start or to end
	yields      bool          // the hold-down of the term is over
	campaigning bool          // the node is healthy and waits for the lease, and only a leader keeps it from that
	lasts       time.Duration // the campaign or the term, so far
}

// source is how the node came to know what the key holds.
type source uint8

const (
	notified  source = iota // a notification, which may be forged, repeated or late, says so
	confirmed               // the store says so
	due                     // the store says so, and the time of an answer has come
)

// action is what a request makes a node do.
type action uint8

const (
	ignore     action = iota
	compete           // take the lease in turn, by the rank
	confirm           // read the key, and decide by what it holds
	yield             // end the term, for a better rank
	handOver          // end the term, for a switchover
	answer            // answer a switchover: this node is ready
	answerSoon        // the same in a while, if the key still asks then
	goFirst           // take the lease without the delay of the rank
	goLater           // take the lease later than the rank says
)

// decide returns what a node does about a request. A notification only says when to read the key, and only
// if what it says would matter.
func (s stance) decide(r request, from source) (do action) {
	switch {
	case !s.holds:
		do = s.waiting(r, from)
	case s.tenure == "":
	case r.state == preferred && r.rank < s.options.Rank && s.yields:
		do = yield
	case r.state == ready && r.tenure == s.tenure:
		do = handOver
	}
	if from == notified && do > compete {
		return confirm
	}
	return do
}

func (s stance) waiting(r request, from source) action {
	switch {
	case r.state == "", r.state == preferred:
		return compete
	case r.state == ready && r.clientID == s.clientID:
		return goFirst
	case r.state == ready:
		return goLater
	case r.state != asked, !s.campaigning, r.to != "" && r.to != s.options.Lease.Holder:
		return ignore
	case r.to == "" && from != due:
		return answerSoon
	}
	return answer
}

// acquireDelay returns how long the node leaves a free lease to others. The one that goes first was there a
// moment ago. Should it not come, the others go in their turn, before the hold-off of the former leader ends.
func (s stance) acquireDelay(do action) time.Duration {
	rank := s.options.Lease.AcquireDelay
	return map[action]time.Duration{compete: rank, goFirst: 0, goLater: rank + s.options.TTL/4}[do]
}

// stance returns what this node is to requests now, and its term; nil: there is none.
func (e *Elector) stance() (stance, *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := stance{options: &e.options, clientID: e.client.ClientID(),
		holds: e.term != nil, lasts: time.Since(e.since),
		campaigning: e.campaigning != nil && e.campaigning.Err() == nil && e.status.Cause == nil}
	if e.status.Phase != Active && e.status.Phase != Draining {
		return s, nil
	}
	s.tenure, s.yields = e.term.tenure.Value(), s.lasts >= e.options.holdDown()
	return s, e.term
}

// follower obeys the requests at the key of an election, and asks for the lead there if its node is
// preferred. It belongs to one goroutine.
type follower struct {
	*run
	key  string
	own  request     // to fail back
	asks bool        // that may be in the key
	over *time.Timer // to when the candidates compete by their ranks again
	next *time.Timer // to when the time has come to act without a request
}

// followRequests follows the key from the first campaign until ctx ends. One watch serves candidate and leader: a node
// that is idle sends nothing for it but what any watch costs.
func (r *run) followRequests(ctx context.Context) {
	f := &follower{run: r, key: requestKey(r.lease.Name()),
		own:  request{clientID: r.client.ClientID(), state: preferred, rank: r.options.Rank},
		over: time.AfterFunc(time.Hour, func() { r.lease.SetAcquireDelay(r.options.Lease.AcquireDelay) }),
		next: time.NewTimer(time.Hour)}
	defer f.over.Stop()
	defer f.next.Stop()
	watch := keywatch.New(r.client.Watch, f.key, time.Minute)
	defer watch.Close()
	defer func() {
		for range 6 { // a TTL, in which the request expires
			f.withdraw(ctx)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
			f.act(ctx)
		case <-f.next.C:
			f.act(ctx)
		case change, open := <-watch.Changes():
			if !open {
				_ = watch.Ended() // a switchover does without notifications only if the rank is not 0
				break
			}
			f.obey(ctx, parseRequest(change.Entry), notified)
		}
		if watch.Start() != nil {
			return
		}
	}
}

// act does what its time has come for. A node that has campaigned for FailBackAfter asks for the lead. A
// leader after its hold-down looks for a better rank, in case a notification is lost: once in a TTL, which
// is as long as a request stands.
func (f *follower) act(ctx context.Context) {
	s, _ := f.stance()
	at, every := f.options.FailBackAfter, f.options.TTL/3
	if s.holds {
		at, every = f.options.holdDown(), f.options.TTL
	}
	if s.lasts < at {
		every = at - s.lasts
	}
	f.next.Reset(every)
	switch {
	case s.campaigning && at > 0 && s.lasts >= at:
		if f.own.replaces(f.read(ctx)) {
			f.asks = true
			f.write(ctx, f.own, f.options.TTL)
		}
	case s.yields && f.options.Rank > 0:
		f.obey(ctx, f.read(ctx), confirmed)
	default:
		f.withdraw(ctx)
	}
}

// obey acts on what the key holds, or is said to hold.
func (f *follower) obey(ctx context.Context, r request, from source) {
	s, term := f.stance()
	switch do := s.decide(r, from); do {
	case confirm:
		f.obey(ctx, f.read(ctx), confirmed)
	case yield:
		term.cancel(fmt.Errorf("%w: to %q of rank %d", ErrYielded, r.clientID, r.rank))
	case handOver:
		if sleep.For(ctx, f.options.TTL/50) { // so that the other candidates have heard it too
			term.cancel(fmt.Errorf("%w: to %q", ErrSwitchover, r.to))
		}
	case answer:
		r.clientID, r.state, r.to = s.clientID, ready, f.options.Lease.Holder
		f.write(ctx, r, f.options.readyFor())
	case answerSoon: // of many candidates a few answer
		if sleep.For(ctx, f.options.Lease.AcquireDelay+random.Duration(f.options.TTL/20)) {
			f.obey(ctx, f.read(ctx), due)
		}
	case compete, goFirst, goLater:
		f.lease.SetAcquireDelay(s.acquireDelay(do))
		f.over.Reset(f.options.readyFor())
	}
}

func (f *follower) read(ctx context.Context) request {
	entry, err := f.client.GetWith(ctx, f.key, bounded(f.options.requestTimeout()))
	if err == nil {
		return parseRequest(entry)
	}
	if ctx.Err() == nil {
		f.options.Logger.Warn("the key of requests could not be read", "error", err)
	}
	return request{state: unread}
}

func (f *follower) write(ctx context.Context, r request, ttl time.Duration) {
	_, err := f.client.Set(ctx, f.key, []byte(r.String()),
		transport.SetOptions{TTL: ttl, Binding: bounded(f.options.requestTimeout())})
	if err != nil && ctx.Err() == nil {
		f.options.Logger.Warn("the key of requests could not be written", "request", r, "error", err)
	}
}

// withdraw deletes the fail-back request of this node, if it may be in the key. Where that fails, it expires.
func (f *follower) withdraw(ctx context.Context) {
	if !f.asks {
		return
	}
	options := transport.DelOptions{Binding: bounded(f.options.requestTimeout())}
	_, err := f.client.VDel(context.WithoutCancel(ctx), f.key, []byte(f.own.String()), options)
	f.asks = errors.Is(err, transport.ErrOutcomeUnknown)
}
