package lease

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/internal/optionerror"
)

// Options configures a Lease. The zero value is safe: a duration that is zero takes its
// default, which is a share of TTL for most of them.
type Options struct {
	// TTL is how long the store keeps the lease after the last renewal: the longest time
	// without a holder after a crash. Whole milliseconds, from MinTTL to MaxTTL. Default 10 s.
	TTL time.Duration
	// Margin is how much earlier than the store a tenure considers itself over.
	// It absorbs the difference in rate of the two clocks and the time between
	// a check of the token and the action. Default TTL/10.
	Margin time.Duration
	// GracePeriod is how long before its deadline a tenure's context ends when renewals fail, so
	// that work can stop in time. The token remains usable until the deadline. Default TTL/10.
	GracePeriod time.Duration
	// RenewEvery is the time from one renewal to the next; up to a tenth is
	// taken off at random, so that many leases spread, and up to RenewEvery/128, so that
	// renewals of one process that are due at nearly the same time leave together. A renewal costs the
	// store no write. Default TTL/6.
	RenewEvery time.Duration
	// RequestTimeout bounds each attempt to acquire, renew or release, and so
	// how long a lost reply goes unnoticed. Default TTL/6.
	RequestTimeout time.Duration
	// Jitter is the longest random delay that a waiter adds to the time at which the lease
	// can expire, so that waiters do not try all at once. It is also how often a waiter
	// tries while notifications do not arrive, and how often it tries at once when it is
	// notified of a release; releases that follow sooner find it with a delay of 10 ms at most.
	// Default TTL/10.
	Jitter time.Duration
	// AcquireDelay is how long Acquire lets other waiters go first each time it finds the lease
	// free, the first time included: it looks with a GET, waits for AcquireDelay, and only then
	// tries. If no other process waits, a crash is followed by TTL + Jitter + AcquireDelay
	// without a holder, at worst. The store does not enforce the delay: a waiter with a shorter
	// one, or a call of TryAcquire, does not wait for it. Default 0.
	AcquireDelay time.Duration
	// Holder is the name of the holder that other processes see. Two processes with one
	// name still exclude each other. Default: the MQTT client id.
	Holder string
	// EndOnDisconnect makes a tenure end as soon as its connection drops, with
	// ErrConnectionLost, and not only when no renewal succeeds in time. It is for work that
	// must stop when it cannot be told to stop. Give it a client of its own: what waits for another
	// lease over the same connection gives that up sooner when it stalls.
	EndOnDisconnect bool
	// InstantFailover makes the broker release the lease when the connection is lost
	// without a DISCONNECT, as when the process is killed. The next holder does not wait for
	// the TTL. See "Instant failover" in the package comment for what it costs. It implies
	// EndOnDisconnect. A client can hold one such lease at a time. RenewEvery and one and a half times
	// RequestTimeout must not be longer than half of the TTL: see "Instant failover".
	InstantFailover bool
	// NoWatch makes tenures do without notifications about their own keys, which makes
	// thousands of leases cheaper. A tenure whose key was deleted then goes on until a
	// renewal meets the next holder, if there is one.
	NoWatch bool
	// OnWaiting, if not nil, gets what keeps Acquire waiting, other than a holder: a
	// refusal by the store or the broker, a missing connection, a request without an
	// answer. cause matches the sentinels of package transport. OnWaiting is called when
	// the kind of cause changes, not for each attempt. It gets nil when the store answers
	// again and Acquire waits for the holder. It is not called when Acquire returns.
	//
	// Acquire waits for OnWaiting. No tenure does. It must return: after a panic in it the store keeps what Acquire
	// may have acquired for a TTL.
	OnWaiting func(cause error)
	// Clock returns the time since some fixed moment. Tenures measure their deadlines with it.
	// It must never go back, and must go on while the machine is suspended. In a TTL it may
	// gain or lose less than Margin against the store's clock. It must be safe for concurrent
	// use and must not block. Default SystemClock.
	Clock func() time.Duration
	// Logger gets what no caller can get: at level Info the beginning and the end of each tenure,
	// and which holder Acquire waits for; at level Warn what goes wrong. Its handler is called as the
	// functions of Trace: nothing waits for it, but its Enabled must not block. Default: no logs.
	Logger *slog.Logger
	// Trace has functions that the lease and its tenures call, for metrics and spans. It must
	// not be changed afterwards. Default: none.
	Trace *Trace

	// retryAfter is the pause after the first failed attempt: TTL/50. It grows exponentially, to RenewEvery at
	// most, and is shorter when a tenure is about to end: a store that is back is found in time.
	retryAfter time.Duration
}

// MinTTL is the shortest TTL. A shorter one would be decided by network round trips and
// schedulers, not by the store.
const MinTTL = 50 * time.Millisecond

// MaxTTL is the longest duration in Options. Sums of longer ones could overflow a time.Duration.
const MaxTTL = 10 * 365 * 24 * time.Hour

const (
	defaultTTL = 10 * time.Second
	// releaseJitter is the longest delay of a waiter after a notification that the lease is
	// free, if it tried at once after another one a moment ago. It only spreads the tries, so it
	// is short.
	releaseJitter = 10 * time.Millisecond
)

// Validate returns the error that New would return for these options: which one makes no sense, and which values
// would do.
func (o Options) Validate() error {
	if err := o.complete("any"); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	return nil
}

// complete fills in the defaults, or says which option makes no sense and which values would do.
func (o *Options) complete(clientID string) error {
	o.TTL = cmp.Or(o.TTL, defaultTTL)
	if o.TTL < MinTTL || o.TTL > MaxTTL || o.TTL%time.Millisecond != 0 {
		return &optionerror.Error{Package: "lease", Field: "TTL", Value: o.TTL,
			Problem: fmt.Sprintf("must be whole milliseconds, at least %v, and at most %v", MinTTL, MaxTTL)}
	}
	for _, duration := range []struct {
		name   string
		value  *time.Duration
		ifZero time.Duration
	}{
		{"Margin", &o.Margin, o.TTL / 10},
		{"GracePeriod", &o.GracePeriod, o.TTL / 10},
		{"RenewEvery", &o.RenewEvery, o.TTL / 6},
		{"RequestTimeout", &o.RequestTimeout, o.TTL / 6},
		{"the pause", &o.retryAfter, o.TTL / 50},
		{"Jitter", &o.Jitter, o.TTL / 10},
		{"AcquireDelay", &o.AcquireDelay, 0},
	} {
		switch value := *duration.value; {
		case value < 0:
			return &optionerror.Error{Package: "lease", Field: duration.name, Value: value, Problem: "is negative"}
		case value > MaxTTL:
			return &optionerror.Error{Package: "lease", Field: duration.name, Value: value,
				Problem: fmt.Sprintf("is longer than %v", MaxTTL)}
		case value == 0:
			*duration.value = duration.ifZero
		}
	}
	o.Holder = cmp.Or(o.Holder, clientID)
	o.EndOnDisconnect = o.EndOnDisconnect || o.InstantFailover
	if o.Clock == nil {
		o.Clock = SystemClock
	}
	o.Trace = cmp.Or(o.Trace, &Trace{})
	// A renewal whose reply is lost must leave space for another, before the owner's context ends.
	if o.RenewEvery+2*o.RequestTimeout+o.retryAfter > o.TTL-o.Margin-o.GracePeriod {
		return fmt.Errorf("one lost reply would lose the lease: "+
			"RenewEvery %v + RequestTimeout %v + a pause of %v + RequestTimeout %v is more than TTL %v − Margin %v − "+
			"GracePeriod %v; make TTL longer, or the longest of the others shorter",
			o.RenewEvery, o.RequestTimeout, o.retryAfter, o.RequestTimeout, o.TTL, o.Margin, o.GracePeriod)
	}
	if noticed := o.RenewEvery + o.RequestTimeout + o.probe(); o.InstantFailover && noticed > o.TTL/2 {
		return fmt.Errorf("InstantFailover: if the machine of the store falls silent, the next store releases the lease "+
			"after half of the TTL %v, and the holder may notice the silence only after RenewEvery %v + RequestTimeout %v + "+
			"half of that = %v; make RenewEvery or RequestTimeout shorter, or TTL longer",
			o.TTL, o.RenewEvery, o.RequestTimeout, noticed)
	}
	return nil
}

// probe is how long the broker has for a sign of life after a request was not answered.
func (o *Options) probe() time.Duration { return o.RequestTimeout / 2 }

// probeHeld is probe for a request of a tenure.
func (o *Options) probeHeld() time.Duration {
	if !o.EndOnDisconnect {
		return o.probe()
	}
	// No other connection can save the tenure: give this one up only when it is too late.
	late := o.TTL - o.Margin - o.GracePeriod
	if o.InstantFailover {
		late = o.TTL / 2 // see statestore.Former.Silent
	}
	return max(o.probe(), late-o.RenewEvery-o.RequestTimeout)
}
