package lease

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Budget says what a set of options means when something fails: how long, at worst, the
// lease has no holder, and how much can go wrong before a holder loses it. It supposes a
// store that answers, at least one process that waits, and clocks that drift apart by less
// than Margin in a TTL. A round trip to the store comes on top.
type Budget struct {
	// TTL is the TTL of the options.
	TTL time.Duration
	// Crash is the longest time from the death of a holder to its successor: the holder
	// renewed at the last moment, and every notification is lost. With InstantFailover, if
	// the broker honours it, the time is a round trip or two. It is the same for a holder that runs
	// on without a network, and after a release of which no notification arrives.
	Crash time.Duration
	// Unheld is the part of Crash, for a holder that is cut off from the network, in which no holder works: from the end of the tenure's
	// context to the successor. At worst the cut loses the reply to a renewal that the store has
	// accepted: the store counts from the arrival of this renewal, and the tenure from when the one
	// before it left. The limit supposes that renewals were answered until the cut, and that the cut
	// stops requests too: a network that loses only replies can make Unheld as long as Crash.
	Unheld time.Duration
	// HandOver is the longest time from a release to the next holder if waiters are notified.
	// Most take a round trip: only waiters that have just lost against another one delay their try.
	HandOver time.Duration
	// Outage is how long the store may be away without costing a lease: the time from when the next
	// renewal is due to the end of the tenure's context. It counts until the client is connected again to a
	// store that answers, and supposes that renewals were answered until then. It is shorter by a
	// RequestTimeout if requests are taken and then lost until the very end. A tenure that ends with its
	// connection outlasts no outage that ends the connection.
	Outage time.Duration
	// Renewals is how many attempts to renew fit between one that succeeds and the end of
	// the tenure's context, if each takes the whole RequestTimeout. All but one may fail. At most 1,000 are counted.
	Renewals int
}

// Budget works out what the options mean for failover. The error is the error of New.
func (o Options) Budget() (Budget, error) {
	if err := o.complete("any"); err != nil {
		return Budget{}, fmt.Errorf("lease: %w", err)
	}
	return Budget{
		TTL:      o.TTL,
		Crash:    o.TTL + o.Jitter + o.AcquireDelay,
		HandOver: min(o.Jitter, releaseJitter) + o.AcquireDelay,
		// The deadline counts from when the last renewal left whose reply arrived. The next one
		// left RenewEvery later, or when that reply came, and arrived at most RequestTimeout after that.
		Unheld:   max(o.RenewEvery, o.RequestTimeout) + o.RequestTimeout + o.GracePeriod + o.Margin + o.Jitter + o.AcquireDelay,
		Outage:   o.outage(),
		Renewals: o.renewals(),
	}, nil
}

// TTLFor returns the shortest TTL for which Budget.Outage is at least outage, whatever o.TTL is. The other
// options are as they are: a duration that is zero is a share of the TTL.
func (o Options) TTLFor(outage time.Duration) (time.Duration, error) {
	o.TTL = MinTTL
	ttl, ok := time.Duration(0), false
	if outage >= 0 && outage <= MaxTTL {
		ttl, ok = o.enoughTTL(outage)
	}
	if !ok {
		return 0, fmt.Errorf("lease: no TTL up to %v outlasts an outage of the store of %v", MaxTTL, outage)
	}
	o.TTL = ttl
	_, err := o.Budget() // for durations that make no sense
	return ttl, err
}

func (o *Options) outage() time.Duration { return o.TTL - o.Margin - o.GracePeriod - o.RenewEvery }

// mostRenewals is how many attempts are counted: a long TTL has room for any number.
const mostRenewals = 1000

// renewals counts the attempts of Budget.Renewals.
func (o *Options) renewals() (count int) {
	backoff, end := o.retryBackoff(0), o.TTL-o.Margin-o.GracePeriod
	for at := o.RenewEvery; at <= end-o.RequestTimeout && count < mostRenewals; count++ {
		at = o.retryAt(at+o.RequestTimeout, end, &backoff, 1)
	}
	return count
}

// String returns the budget as a table for people. Limits are rounded to the safe side, to microseconds: a sixth
// of a TTL has many digits.
func (b Budget) String() string {
	roundedUp := func(d time.Duration) time.Duration { return (d + time.Microsecond - 1).Truncate(time.Microsecond) }
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range []struct {
		text  string
		limit any
	}{
		{fmt.Sprintf("With a TTL of %v", b.TTL), "at worst"},
		{"the holder crashes: the next one holds after", roundedUp(b.Crash)},
		{"the holder is cut off: the next one holds after", roundedUp(b.Crash)},
		{"… of which no holder works for", roundedUp(b.Unheld)},
		{"a clean hand-over takes", roundedUp(b.HandOver)},
		{"… if its notification is lost", roundedUp(b.Crash)},
		{"the store is away, and no lease is lost, for", b.Outage.Truncate(time.Microsecond)},
		{"renewals in a row that may go unanswered", max(b.Renewals-1, 0)},
	} {
		fmt.Fprintf(table, "%s\t%v\n", row.text, row.limit)
	}
	_ = table.Flush() // a strings.Builder accepts everything
	return text.String()
}
