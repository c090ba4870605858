package lease

import (
	"context"
	"iter"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// Observe yields the holder of the lease and then each change of holder, until ctx ends or
// the client is closed or taken over. A renewal is not a change. A new tenure of the same
// holder is one. A slow consumer sees only the latest holder.
//
// If the store does not answer, Observe yields the last known holder with an error, once for
// each kind of error, and goes on asking. It then yields the next answer even if the holder
// is the same. An error that matches transport.ErrClosed or ErrSessionTakenOver is the last.
// The end of ctx ends the sequence without an error.
//
// Every holder comes from an answer of the store. A notification only says when to ask,
// because it may be old or forged. If notifications are lost, a change shows within a TTL.
// The store is asked at most once in a fiftieth of the TTL, however many notifications come.
func (l *Lease) Observe(ctx context.Context) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		o := &observation{
			lease:   l,
			yield:   yield,
			key:     keywatch.New(l.client.Watch, l.name, 0),
			failure: "not asked yet",
			backoff: l.options.retryBackoff(l.options.Jitter),
		}
		defer o.key.Close()
		next := time.NewTimer(l.options.TTL)
		defer next.Stop()
		for {
			if !time.Now().Before(o.next) && !o.ask(ctx) {
				return
			}
			next.Reset(max(time.Until(o.next), 1))
			_, replaced := l.client.Store()
			select {
			case <-ctx.Done():
				return
			case <-replaced:
				o.soon() // the known holder is the holder at another store
			case <-next.C:
			case change, open := <-o.key.Changes():
				switch {
				case !open && isTerminal(o.key.Ended()):
					o.next = time.Now() // the answer says that the client is closed
				case !open: // the store grants no watch for now
				case o.failure == "" && o.differs(holderOf(change.Entry)): // else a flood would defeat the backoff
					o.soon()
				}
			}
		}
	}
}

// observation is one run of Observe. It has one goroutine.
type observation struct {
	lease *Lease
	yield func(Holder, error) bool
	key   *keywatch.Watch

	known   Holder       // by the latest answer
	failure string       // the class of the latest error yielded; "" if an answer came since
	asked   time.Time    // when the store was asked last
	next    time.Time    // when to ask next; zero: now
	backoff retryBackoff // between questions without an answer
}

// ask asks the store, and returns whether to go on.
func (o *observation) ask(ctx context.Context) bool {
	l := o.lease
	_ = o.key.Start() // before the question, so that no change is missed
	o.asked = time.Now()
	entry, err := l.get(ctx, l.client, transport.Binding{}, l.options.probe())
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		o.next = time.Now().Add(o.backoff.next(random.Fraction()))
		class := classOf(err)
		if class == o.failure && !isTerminal(err) {
			return true
		}
		o.failure = class
		return o.yield(o.known, operror.New("lease: observe", l.name, err)) && !isTerminal(err)
	}
	o.backoff.reset()
	o.next = o.asked.Add(l.options.TTL)
	holder := l.heard(entry)
	if o.failure == "" && !o.differs(holder) {
		return true // a renewal
	}
	o.known, o.failure = holder, ""
	return o.yield(holder, nil)
}

// soon makes the next question come at once, or retryAfter after the latest.
func (o *observation) soon() {
	if at := o.asked.Add(o.lease.options.retryAfter); at.Before(o.next) {
		o.next = at
	}
}

func (o *observation) differs(holder Holder) bool {
	return holder.Held != o.known.Held || holder.Value != o.known.Value
}
