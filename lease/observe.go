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
		key := keywatch.New(l.client.Watch, l.name, 0)
		defer key.Close()
		timer := time.NewTimer(l.options.TTL)
		defer timer.Stop()
		backoff := l.options.retryBackoff(l.options.Jitter) // between questions without an answer
		var known Holder                                    // by the latest answer
		failure := "not asked yet"                          // the class of the latest error; "" if an answer came since
		differs := func(holder Holder) bool { return holder.Held != known.Held || holder.Value != known.Value }
		for {
			_ = key.Start()                         // before the question, so that no change is missed
			asked, due := time.Now(), l.options.TTL // due is when to ask again, from then on
			entry, err := l.get(ctx, l.client, transport.Binding{}, l.options.probe())
			if ctx.Err() != nil {
				return
			}
			changed := classOf(err) != failure || isTerminal(err)
			failure = classOf(err)
			if err != nil {
				due = time.Since(asked) + backoff.next(random.Fraction())
			} else {
				backoff.reset()
				holder := l.heard(entry)
				changed = changed || differs(holder) // else it is a renewal
				known = holder
			}
			if changed && !yield(known, operror.New("lease: observe", l.name, err)) || isTerminal(err) {
				return
			}
			for left := due - time.Since(asked); left > 0; left = due - time.Since(asked) {
				timer.Reset(left)
				_, replaced := l.client.Store()
				select {
				case <-ctx.Done():
					return
				case <-timer.C:
				case <-replaced: // the known holder is the holder at another store
					due = min(due, l.options.retryAfter)
				case change, open := <-key.Changes():
					switch {
					case !open && isTerminal(key.Ended()):
						due = 0 // the answer says that the client is closed
					case open && failure == "" && differs(holderOf(change.Entry)): // else a flood would defeat the backoff
						due = min(due, l.options.retryAfter)
					}
				}
			}
		}
	}
}
