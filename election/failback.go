package election

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// bid is what a preferred node says to the leader: that it is fit, and its rank.
// It stands in the store under the name of the election and bidSuffix, with the
// lease's TTL, for as long as the node waits. The client id comes first because a
// strict store wants that of keys under lock prefixes.
type bid struct {
	from string // client id
	rank int
}

func (b bid) String() string { return b.from + ":" + strconv.Itoa(b.rank) }

// parseBid reads what a key holds. Anybody may have written it.
func parseBid(entry transport.Entry) (b bid, ok bool) {
	value := string(entry.Value)
	colon := strings.LastIndexByte(value, ':')
	if !entry.Exists || colon < 0 {
		return bid{}, false
	}
	rank, err := strconv.Atoi(value[colon+1:])
	if err != nil || rank < 0 {
		return bid{}, false
	}
	return bid{from: value[:colon], rank: rank}, true
}

// holdDown is how long a leader leads before it yields.
func (e *Elector) holdDown() time.Duration { return max(e.options.FailBackAfter, e.options.TTL) }

// Shares of the TTL, as with the lease, so that a lost refresh does not lose the
// bid.

func (e *Elector) refreshBidEvery() time.Duration { return e.options.TTL / 3 }

func (e *Elector) requestTimeout() time.Duration { return e.options.TTL / 6 }

func (e *Elector) bidKey() string { return e.lease.Name() + protocol.BidSuffix }

// keepBid bids, once ctx has lasted for FailBackAfter, until ctx ends, and
// withdraws the bid. It begins when the one before it has ended. A node that could not
// get the lease if it were free lets its bid run out.
func (e *Elector) keepBid(ctx context.Context, before <-chan struct{}) {
	<-before // what that withdraws must not be ours
	if !sleep.For(ctx, e.options.FailBackAfter) {
		return
	}
	own := bid{from: e.client.ClientID(), rank: e.options.Rank}
	defer e.withdrawBid(context.WithoutCancel(ctx), own)
	for {
		if !e.barred.Load() {
			if err := e.placeBid(ctx, own); err != nil && ctx.Err() == nil {
				e.options.Logger.Warn("a bid for the lead could not be placed", "key", e.bidKey(), "error", err)
			}
		}
		if !sleep.For(ctx, e.refreshBidEvery()) {
			return
		}
	}
}

// placeBid writes or refreshes a bid. It leaves one of an equal or better rank
// alone: that does the same for us.
func (e *Elector) placeBid(ctx context.Context, own bid) error {
	ctx, cancel := context.WithTimeout(ctx, e.requestTimeout())
	defer cancel()
	set := func(condition transport.Condition) error {
		_, err := e.client.Set(ctx, e.bidKey(), []byte(own.String()), transport.SetOptions{Condition: condition, TTL: e.options.TTL})
		return err
	}
	err := set(transport.IfMissingOrEqual)
	if !errors.Is(err, transport.ErrConditionFailed) {
		return err
	}
	entry, err := e.client.Get(ctx, e.bidKey())
	if err != nil {
		return err
	}
	if other, ok := parseBid(entry); ok && other.rank <= own.rank {
		return nil
	}
	return set(transport.Always)
}

// withdrawBid deletes a bid. One that cannot be deleted is gone after a TTL.
func (e *Elector) withdrawBid(ctx context.Context, own bid) {
	ctx, cancel := context.WithTimeout(ctx, e.options.TTL)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, e.requestTimeout())
		_, err := e.client.VDel(attempt, e.bidKey(), []byte(own.String()), transport.DelOptions{})
		cancel()
		if !errors.Is(err, transport.ErrOutcomeUnknown) || !sleep.For(ctx, e.requestTimeout()) {
			return
		}
	}
}

// awaitBid waits until a better rank bids for the lead, and this node has led for
// long enough. It returns nil when ctx ends first.
//
// Notifications only say when to look. In case they are lost, it looks once in a
// TTL, which is as long as a bid stands.
func (e *Elector) awaitBid(ctx context.Context) *YieldError {
	if !sleep.For(ctx, e.holdDown()) {
		return nil
	}
	watch, err := e.client.Watch(e.bidKey())
	if err != nil {
		return nil // the client is closed, and so the term over
	}
	defer watch.Close()
	changes := watch.Changes()
	check := time.NewTicker(e.options.TTL)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case change, open := <-changes:
			if !open {
				changes = nil // no watch is granted: the ticker must do
				continue
			}
			if _, better := e.better(change.Entry); !better {
				continue
			}
		case <-check.C:
		}
		entry, err := e.readBid(ctx)
		if err != nil && ctx.Err() == nil {
			e.options.Logger.Warn("the bids for the lead could not be read", "key", e.bidKey(), "error", err)
		}
		if other, better := e.better(entry); better {
			return &YieldError{To: other.from, Rank: other.rank}
		}
	}
}

func (e *Elector) readBid(ctx context.Context) (transport.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, e.requestTimeout())
	defer cancel()
	entry, err := e.client.Get(ctx, e.bidKey())
	if err != nil {
		return transport.Entry{}, fmt.Errorf("election: %w", err)
	}
	return entry, nil
}

// better reports whether a key holds the bid of a better rank than ours.
func (e *Elector) better(entry transport.Entry) (other bid, better bool) {
	other, ok := parseBid(entry)
	return other, ok && other.rank < e.options.Rank
}
