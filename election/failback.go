package election

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// failBackRequest asks a leader of a worse rank to hand over. A healthy preferred node keeps
// it in the store while it waits, with the lease's TTL. Its value begins with the client id,
// because a strict store wants that for keys under lock prefixes.
type failBackRequest struct {
	clientID string
	rank     int
}

func (r failBackRequest) String() string { return r.clientID + ":" + strconv.Itoa(r.rank) }

// parseFailBackRequest reads the value of the key. Any client may have written it.
func parseFailBackRequest(entry transport.Entry) (r failBackRequest, ok bool) {
	value := string(entry.Value)
	colon := strings.LastIndexByte(value, ':')
	rank, err := strconv.Atoi(value[colon+1:])
	if !entry.Exists || colon < 0 || err != nil || rank < 0 {
		return failBackRequest{}, false
	}
	return failBackRequest{clientID: value[:colon], rank: rank}, true
}

// replaces reports whether this request may take the place of what the key holds. That stays if it has the
// same effect, or is a switchover, which expires soon.
func (r failBackRequest) replaces(entry transport.Entry) bool {
	other, isRequest := parseFailBackRequest(entry)
	_, isSwitchover := parseSwitchover(entry)
	return !isSwitchover && (!isRequest || other.rank > r.rank)
}

func (e *Elector) failBackKey() string { return e.lease.Name() + protocol.FailBackSuffix }

// requestTimeout bounds each request of the election itself. Like refreshEvery it is the
// lease's default, so that one lost refresh does not lose the fail-back request.
func (e *Elector) requestTimeout() time.Duration { return e.options.TTL / 6 }

func (e *Elector) refreshEvery() time.Duration { return e.options.TTL / 3 }

// startFailBack asks for the lead until stop is called or ctx ends. Neither waits for the
// deletion of the request, so that a term can start before that.
func (r *run) startFailBack(ctx context.Context) (stop context.CancelFunc) {
	ctx, stop = context.WithCancel(ctx)
	if r.options.FailBackAfter == 0 {
		return stop
	}
	before, ended := r.failBackEnded, make(chan struct{})
	r.failBackEnded = ended
	r.tasks.Go(func() {
		defer close(ended)
		r.requestFailBack(ctx, before)
	})
	return stop
}

// requestFailBack keeps a request in the store, once ctx has lasted for FailBackAfter, and
// deletes it when ctx ends. It starts when the call before it has ended: the deletion by
// that one must not delete the new request. While the node could not get the lease even if
// it were free, the request is not refreshed and expires.
func (e *Elector) requestFailBack(ctx context.Context, before <-chan struct{}) {
	<-before
	if !sleep.For(ctx, e.options.FailBackAfter) {
		return
	}
	own := failBackRequest{clientID: e.client.ClientID(), rank: e.options.Rank}
	defer e.withdrawRequest(context.WithoutCancel(ctx), own)
	for {
		if e.Status().Cause == nil {
			if err := e.placeRequest(ctx, own); err != nil && ctx.Err() == nil {
				e.options.Logger.Warn("the fail-back request could not be written", "lease", e.lease.Name(), "error", err)
			}
		}
		if !sleep.For(ctx, e.refreshEvery()) {
			return
		}
	}
}

// placeRequest writes or refreshes the request of this node, unless what the key holds is to stay.
func (e *Elector) placeRequest(ctx context.Context, own failBackRequest) error {
	ctx, cancel := context.WithTimeout(ctx, e.requestTimeout())
	defer cancel()
	set := func(condition transport.Condition) error {
		_, err := e.client.Set(ctx, e.failBackKey(), []byte(own.String()), transport.SetOptions{Condition: condition, TTL: e.options.TTL})
		return err
	}
	err := set(transport.IfMissingOrEqual)
	if !errors.Is(err, transport.ErrConditionFailed) {
		return err
	}
	entry, err := e.client.Get(ctx, e.failBackKey())
	if err != nil {
		return err
	}
	if !own.replaces(entry) {
		return nil
	}
	return set(transport.Always)
}

// withdrawRequest deletes the request of this node, or lets it expire if that fails.
func (e *Elector) withdrawRequest(ctx context.Context, own failBackRequest) {
	ctx, cancel := context.WithTimeout(ctx, e.options.TTL)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, e.requestTimeout())
		_, err := e.client.VDel(attempt, e.failBackKey(), []byte(own.String()), transport.DelOptions{})
		cancel()
		if !errors.Is(err, transport.ErrOutcomeUnknown) || !sleep.For(ctx, e.requestTimeout()) {
			return
		}
	}
}

// holdDown is how long a leader leads before it obeys requests of a better rank.
func (o *Options) holdDown() time.Duration { return max(o.FailBackAfter, o.TTL) }

// awaitFailBack makes this node obey requests of a better rank once it has led for the
// hold-down. In case notifications are lost, it reads the key once in a TTL, which is as long
// as such a request stands.
func (e *Elector) awaitFailBack(ctx context.Context, term *Term) {
	for wait := e.options.holdDown(); sleep.For(ctx, wait); wait = e.options.TTL {
		e.set(func() { term.yields = true })
		entry := e.readRequest(ctx)
		s, _ := e.stance()
		e.obey(ctx, term, s.heed(entry, confirmed), entry)
	}
}

// readRequest reads the key. A failure is logged and counts as no request.
func (e *Elector) readRequest(ctx context.Context) transport.Entry {
	bounded, cancel := context.WithTimeout(ctx, e.requestTimeout())
	defer cancel()
	entry, err := e.client.Get(bounded, e.failBackKey())
	if err != nil {
		if ctx.Err() == nil {
			e.options.Logger.Warn("the key of requests could not be read", "lease", e.lease.Name(), "error", err)
		}
		return transport.Entry{}
	}
	return entry
}
