package lease

import (
	"context"
	"iter"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// Observe returns the holder of the lease and then each change of holder, until
// ctx ends or the client is closed. Renewals are not changes; a tenure of the
// same holder that follows another is. A consumer that is slow sees the latest
// holder only.
//
// Changes come by notification. In case those are lost, the store is asked once
// in a TTL.
func (l *Lease) Observe(ctx context.Context) iter.Seq[Holder] {
	return func(yield func(Holder) bool) {
		watch, err := l.client.Watch(l.name)
		if err != nil {
			return
		}
		defer watch.Close()
		var known *Holder
		// changed passes a new holder on; false means that the consumer has left.
		changed := func(entry transport.Entry) bool {
			holder := holderOf(entry)
			if known != nil && (known.Tenure == holder.Tenure || holder.Held && holder.Version.Compare(known.Version) < 0) {
				return true // a renewal, or an answer that a notification overtook
			}
			known = &holder
			return yield(holder)
		}
		changes := watch.Changes()
		check := time.NewTicker(l.options.TTL)
		defer check.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case change, open := <-changes:
				switch {
				case open:
					if !changed(change.Entry) {
						return
					}
				case isTerminal(watch.Err()):
					return
				default:
					changes = nil // no watch is granted: the ticker must do
				}
			case <-check.C:
				entry, err := l.client.Get(ctx, l.name)
				if isTerminal(err) {
					return
				}
				if err == nil && !changed(entry) {
					return
				}
			}
		}
	}
}
