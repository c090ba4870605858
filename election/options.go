package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Options configures an Elector. The zero value is safe; every duration that is zero takes its
// default. All candidates of one name should have the same options, but for Rank.
type Options struct {
	// TTL is how long the store keeps the lease after the last renewal: how long the
	// others wait after a crash of the leader. See lease.Options.TTL. Default 10 s.
	TTL time.Duration
	// Lease has the other options of the lease. New refuses a Lease.TTL, a Lease.AcquireDelay and a
	// Lease.OnWaiting: the TTL above, Rank and Observer are in their place. If Lease.Logger is
	// nil, the Logger below is used. Lease.Trace gets the attempts, renewals and tenures of this node.
	Lease lease.Options
	// Claim lists keys that a new leader protects with its token before its function starts, so
	// that no write of its predecessor can follow. With a key of the election itself no term begins.
	Claim []string
	// HoldOff is how long a node stays out after it ended its own term (it resigned, was
	// unhealthy or handed over, or its function returned or failed), so that another node gets
	// its turn. A node also stays out after any term shorter than TTL, because what ended that
	// term may end the next one too, and after a campaign that failed. HoldOff counts from when
	// nothing else keeps the node out, such as bad health. It doubles, up to eightfold, while
	// terms are shorter than TTL or campaigns fail. Default TTL/2.
	HoldOff time.Duration

	// Health, if set, returns nil if this node can lead, and otherwise why not. It is called
	// before the first campaign, and then all the time while Run runs, never twice at once. An
	// unhealthy node does not campaign, and hands over if it leads. A panic counts as an error.
	//
	// Its context ends after HealthTimeout and with Run's context. It should return then:
	// Run waits for it, though only after the lease was released.
	Health func(ctx context.Context) error
	// HealthEvery is the pause from the end of one call of Health to the next. Default TTL/3, so
	// that with the default HealthTimeout an unhealthy leader is found sooner than a dead one.
	HealthEvery time.Duration
	// HealthTimeout is how long Health may take before that counts as a failure. Default TTL/3.
	HealthTimeout time.Duration

	// Rank orders the candidates: 0, the default, is the best. A node of rank n waits n × TTL/8 for
	// better ranks before it takes a lease that is free. That is more than the default of Lease.Jitter, so
	// the better rank wins even if notifications are lost.
	Rank int
	// FailBackAfter is how long this node waits, healthy without a break, before it asks a
	// leader of a worse rank to hand over. Zero: it never asks. It is the hold-down too: a
	// leader does not hand over to a better rank before it has led for as long itself, and for
	// TTL at least. A node that crashed as the leader, and finds its lease still in the store
	// when it starts, stays out for TTL + HoldOff, so that another node takes the lease.
	FailBackAfter time.Duration

	// Observer, if set, gets the status at each change of phase, one at a time and in order. A panic in it is logged.
	// While this node holds the lease nothing waits for it. A campaign waits for it before it begins, and Run before
	// it returns, so it must not wait for Run to return.
	Observer func(Status)
	// Logger receives what cannot be returned to a caller: at level Info when this node leads,
	// when no longer, and why not, once for each change; at level Warn and above what goes
	// wrong. Nil keeps silent. Its handler is called as lease.Options.Logger says: nothing waits for it.
	Logger *slog.Logger
}

const (
	defaultTTL = 10 * time.Second
	// rankShare is the part of the TTL that each rank waits longer than the one before.
	rankShare = 8
	// maxHoldOff is how many times HoldOff can grow to.
	maxHoldOff = 8
	// maxRank keeps the delay of a rank a time.Duration, however long the TTL is.
	maxRank = 100
)

// complete fills in the defaults, or says which option makes no sense and which values would do.
func (o *Options) complete() error {
	if l := o.Lease; l.TTL != 0 || l.AcquireDelay != 0 || l.OnWaiting != nil {
		return errors.New("set Options.TTL, Options.Rank and Options.Observer, not TTL, AcquireDelay or OnWaiting of Lease")
	}
	if o.Rank < 0 || o.Rank > maxRank {
		return &optionerror.Error{Package: "election", Field: "Rank", Value: o.Rank,
			Problem: fmt.Sprintf("does not exist; the best rank is 0, and the worst is %d", maxRank)}
	}
	o.TTL = cmp.Or(o.TTL, defaultTTL)
	for field, value := range map[string]time.Duration{
		"HoldOff": o.HoldOff, "HealthEvery": o.HealthEvery, "HealthTimeout": o.HealthTimeout,
		"FailBackAfter": o.FailBackAfter,
	} {
		if value < 0 {
			problem := "is negative; 0 means the default"
			return &optionerror.Error{Package: "election", Field: field, Value: value, Problem: problem}
		}
	}
	o.HoldOff = cmp.Or(o.HoldOff, o.TTL/2)
	o.HealthEvery = cmp.Or(o.HealthEvery, o.TTL/3)
	o.HealthTimeout = cmp.Or(o.HealthTimeout, o.TTL/3)
	if o.Observer == nil {
		o.Observer = func(Status) {}
	}
	o.Lease.TTL = o.TTL
	o.Lease.AcquireDelay = time.Duration(o.Rank) * (o.TTL / rankShare)
	o.Lease.Logger = cmp.Or(o.Lease.Logger, o.Logger)
	o.Claim = slices.Clone(o.Claim)
	return nil
}

// holdDown is how long a leader leads before it obeys requests of a better rank.
func (o *Options) holdDown() time.Duration { return max(o.FailBackAfter, o.TTL) }

// bounded bounds a request that is made now.
func bounded(within time.Duration) transport.Binding {
	return transport.Binding{Until: time.Now().Add(within)}
}

// requestTimeout bounds each request of the election itself. It is the lease's default.
func (o *Options) requestTimeout() time.Duration { return o.TTL / 6 }

// readyFor is how long the word of a candidate stands. The leader drains no longer than its tenure lasts.
func (o *Options) readyFor() time.Duration { return o.TTL + o.TTL/2 }
