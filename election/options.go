package election

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/tenurelock/tenure/lease"
)

// Options configures an Elector. The zero value is safe; every duration that is zero takes its
// default. All candidates of one name should have the same options, but for Rank.
type Options struct {
	// TTL is how long the store keeps the lease after the last renewal: how long the
	// others wait after a crash of the leader. See lease.Options.TTL. Default 10 s.
	TTL time.Duration
	// Lease has the other options of the lease. New refuses a Lease.TTL and a
	// Lease.AcquireDelay: they come from the TTL above and from Rank. Lease.OnWaiting is
	// called in addition to the Observer, which gets the same causes; a panic in it is
	// logged. If Lease.Logger is nil, the Logger below is used. Lease.Trace gets the attempts,
	// renewals and tenures of this node.
	Lease lease.Options
	// Claim lists keys that a new leader protects with its token before its function starts, so
	// that no write of its predecessor can follow. The key of the lease is not allowed.
	Claim []string
	// HoldOff is how long a node stays out after it ended its own term (it resigned, was
	// unhealthy or handed over, or its function returned or failed), so that another node gets
	// its turn. A node also stays out after any term shorter than TTL, because what ended that
	// term may end the next one too, and after a campaign that failed. HoldOff counts from when
	// nothing else keeps the node out, such as bad health. It doubles, up to eightfold, while
	// terms are shorter than TTL or campaigns fail. Default TTL/2.
	HoldOff time.Duration
	// OneShot makes Run return after one term, even if its function could not start.
	OneShot bool

	// Standby, if set, runs while this node campaigns, to keep it ready: to fill a cache, say.
	// Its context ends when this node has the lease, when it becomes unhealthy, or with Run's
	// context; then Standby must return. It may return earlier, and is not called again before
	// the next campaign. Its error or panic is logged and has no other effect.
	//
	// The term starts when Standby has returned, so a slow return costs time without a
	// leader. If it takes longer than a tenure lasts without renewal, the lease is
	// released with ErrNotReady as the cause. The node then stays out until Standby has
	// returned, and for HoldOff more.
	Standby func(ctx context.Context) error

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
	// HealthTimeout is how long Health may take before that counts as a failure,
	// and as another one each time that it passes again. Default TTL/3.
	HealthTimeout time.Duration
	// HealthFailures is how many failures in a row make a healthy node unhealthy;
	// one success makes it healthy. Default 1.
	HealthFailures int

	// Rank orders the candidates: 0, the default, is the best. A node of rank n waits
	// n × RankDelay for better ranks before it takes a lease that is free.
	Rank int
	// RankDelay is how much longer each rank waits than the one before. More than
	// Lease.Jitter lets the better rank win even if notifications are lost; with much
	// less than that, the network decides. Default TTL/8.
	RankDelay time.Duration
	// FailBackAfter is how long this node waits, healthy without a break, before it asks a
	// leader of a worse rank to hand over. Zero: it never asks. It is the hold-down too: a
	// leader does not hand over to a better rank before it has led for as long itself, and for
	// TTL at least. A node that crashed as the leader, and finds its lease still in the store
	// when it starts, stays out for TTL + HoldOff, so that another node takes the lease.
	FailBackAfter time.Duration

	// RefuseSwitchover makes this node, while it leads, refuse what [Switchover] asks.
	RefuseSwitchover bool

	// Observer, if set, gets each change of phase, one at a time, in order. Run
	// waits for it; renewals do not. A panic in it is logged.
	//
	// While this node holds the lease, Run waits for the Observer no longer than the tenure
	// lasts without renewal. If that passes before the term's function has started, the lease
	// is released, with ErrNotReady as the cause, and the node stays out until the Observer has
	// returned, and for HoldOff more. If it passes in Draining, the lease is released and the
	// next campaign waits for the Observer. Of several Standbys that come while the Observer is
	// busy it gets the latest only. Run waits for it before it returns.
	Observer func(Transition)
	// Logger receives what cannot be returned to a caller: at level Info when this node leads,
	// when no longer, and why not, once for each change; at level Warn and above what goes
	// wrong. Nil keeps silent. Its handler should not block: it holds up what it is called for, as the
	// Observer does, and can lose the lease. A term ends in time all the same.
	Logger *slog.Logger
}

const (
	defaultTTL = 10 * time.Second
	// maxHoldOff is how many times HoldOff can grow to.
	maxHoldOff = 8
)

// complete fills in the defaults, or says which option makes no sense and which values would do.
func (o *Options) complete() error {
	if o.Lease.TTL != 0 {
		return fmt.Errorf("Options.Lease.TTL is %v; set Options.TTL instead", o.Lease.TTL)
	}
	if o.Lease.AcquireDelay != 0 {
		return fmt.Errorf("Options.Lease.AcquireDelay is %v; set Options.Rank and Options.RankDelay instead", o.Lease.AcquireDelay)
	}
	o.TTL = cmp.Or(o.TTL, defaultTTL)
	for _, duration := range o.durations() {
		if *duration.value < 0 {
			return fmt.Errorf("%s %v is negative; 0 means the default", "Options."+duration.name, *duration.value)
		}
		*duration.value = cmp.Or(*duration.value, duration.ifUnset)
	}
	if o.HealthFailures < 0 {
		return fmt.Errorf("Options.HealthFailures %d is negative; 0 means 1", o.HealthFailures)
	}
	o.HealthFailures = max(o.HealthFailures, 1)
	if o.Rank < 0 {
		return fmt.Errorf("Options.Rank %d is negative; the best rank is 0", o.Rank)
	}
	if o.RankDelay > 0 && time.Duration(o.Rank) > math.MaxInt64/o.RankDelay {
		return fmt.Errorf("rank %d × Options.RankDelay %v is longer than a time.Duration can be; ranks are small numbers", o.Rank, o.RankDelay)
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Lease.TTL = o.TTL
	o.Lease.AcquireDelay = time.Duration(o.Rank) * o.RankDelay
	o.Lease.Logger = cmp.Or(o.Lease.Logger, o.Logger)
	o.Claim = slices.Clone(o.Claim)
	return nil
}

type duration struct {
	name    string
	value   *time.Duration
	ifUnset time.Duration
}

// durations are all durations but TTL.
func (o *Options) durations() []duration {
	return []duration{
		{"HoldOff", &o.HoldOff, o.TTL / 2},
		{"HealthEvery", &o.HealthEvery, o.TTL / 3},
		{"HealthTimeout", &o.HealthTimeout, o.TTL / 3},
		{"RankDelay", &o.RankDelay, o.TTL / 8},
		{"FailBackAfter", &o.FailBackAfter, 0},
	}
}

// LogValue returns the options as a group, without the functions and the Logger.
func (o Options) LogValue() slog.Value {
	group := []slog.Attr{slog.String("TTL", o.TTL.String())}
	for _, duration := range o.durations() {
		group = append(group, slog.String(duration.name, duration.value.String()))
	}
	return slog.GroupValue(append(group, slog.Any("Lease", o.Lease), slog.Any("Claim", o.Claim), slog.Bool("OneShot", o.OneShot),
		slog.Bool("RefuseSwitchover", o.RefuseSwitchover),
		slog.Int("HealthFailures", o.HealthFailures), slog.Int("Rank", o.Rank))...)
}
