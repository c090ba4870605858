package lease

import (
	"fmt"
	"log/slog"
	"time"
)

// Options configures a Lease. The zero value is safe; every duration that is
// zero takes its default, most of them a share of TTL.
type Options struct {
	// TTL is how long the store keeps the lease after the last renewal: the
	// longest time without a holder after a crash. Whole milliseconds, from MinTTL
	// to MaxTTL. Default 10 s.
	TTL time.Duration
	// Margin is how much earlier than the store a tenure considers itself over.
	// It absorbs the difference in rate of the two clocks and the time between
	// a check of the token and the action. Default TTL/10.
	Margin time.Duration
	// GracePeriod is how long before its deadline a tenure's context ends when
	// renewals fail, so that work can stop in time. The token remains usable
	// until the deadline. Default TTL/10.
	GracePeriod time.Duration
	// RenewEvery is the time from one renewal to the next; up to a tenth is
	// taken off at random, so that many leases spread. Default TTL/3.
	RenewEvery time.Duration
	// RequestTimeout bounds each attempt to acquire, renew or release, and so
	// how long a lost reply goes unnoticed. Default TTL/6.
	RequestTimeout time.Duration
	// RetryAfter is the pause after the first failed attempt; it grows
	// exponentially, to RenewEvery at most. Default TTL/50.
	RetryAfter time.Duration
	// Jitter is how long a waiter may delay beyond the time at which the lease
	// can expire, at random, so that many do not try at once; and how often it
	// looks while notifications do not arrive. Default TTL/10.
	Jitter time.Duration
	// AcquireDelay is how long Acquire lets other waiters go first each time it finds
	// the lease free, the first time included: it looks with a GET, waits for
	// AcquireDelay, and only then tries. If no other process waits, a crash is followed
	// by TTL + Jitter + AcquireDelay without a holder, at worst. The store does not
	// enforce the delay: a waiter with a shorter one, or a call of TryAcquire, does not
	// wait for it. Default 0.
	AcquireDelay time.Duration
	// Holder is the name under which the lease is held, for others to see.
	// Default: the MQTT client id. Two processes with one name still exclude
	// each other.
	Holder string
	// EndOnDisconnect makes a tenure end as soon as its connection drops, with
	// ErrConnectionLost, rather than when no renewal came through in time. That is
	// for work which must stop when it cannot be told to stop.
	EndOnDisconnect bool
	// InstantFailover makes the broker free the lease when the connection is lost
	// without a farewell, as when the process is killed: the next holder need not
	// wait for the TTL. See "Instant failover" in the package comment for what it
	// costs. It implies EndOnDisconnect. There can be one such lease for each client.
	InstantFailover bool
	// NoWatch spares each tenure the notifications about its own key, which makes
	// thousands of leases cheaper. A tenure whose key was deleted then goes on until
	// a renewal meets the next holder, if ever.
	NoWatch bool
	// OnWaiting, if not nil, gets what keeps Acquire waiting, other than a holder: a
	// refusal by the store or the broker, a missing connection, a request without an
	// answer. cause matches the sentinels of package transport. OnWaiting is called when
	// the kind of cause changes, not for each attempt, and with nil when the store answers
	// again and Acquire waits for the holder. It is not called when Acquire returns.
	//
	// Acquire calls it in the goroutine of its caller and waits for it: it must not block.
	OnWaiting func(cause error)
	// Clock measures the tenure; default SystemClock.
	Clock Clock
	// Logger receives what no caller can; nil keeps silent. Its handler must not block:
	// renewals wait for it.
	Logger *slog.Logger
}

// MinTTL is the shortest TTL. Below it network round trips and schedulers
// decide, not the store.
const MinTTL = 50 * time.Millisecond

// MaxTTL is the longest TTL, and the longest of the other durations. Sums of longer ones
// might be more than a time.Duration can be.
const MaxTTL = 10 * 365 * 24 * time.Hour

const (
	defaultTTL = 10 * time.Second
	// releaseJitter bounds the delay of a waiter that saw the lease go away.
	// It only spreads the tries, so it is short.
	releaseJitter = 10 * time.Millisecond
)

func (o *Options) complete(clientID string) error {
	defaulted := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	defaulted(&o.TTL, defaultTTL)
	defaulted(&o.Margin, o.TTL/10)
	defaulted(&o.GracePeriod, o.TTL/10)
	defaulted(&o.RenewEvery, o.TTL/3)
	defaulted(&o.RequestTimeout, o.TTL/6)
	defaulted(&o.RetryAfter, o.TTL/50)
	defaulted(&o.Jitter, o.TTL/10)
	if o.Holder == "" {
		o.Holder = clientID
	}
	o.EndOnDisconnect = o.EndOnDisconnect || o.InstantFailover
	if o.Clock == nil {
		o.Clock = SystemClock
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o.validate()
}

// probe is how long the other end of a connection on which a request went unanswered has
// to show a sign of life.
func (o *Options) probe() time.Duration {
	patience := o.RequestTimeout / 2
	if o.EndOnDisconnect {
		// No other connection can save the tenure, and this one may: so it is given up
		// when that is too late.
		patience = max(patience, o.TTL-o.Margin-o.GracePeriod-o.RenewEvery-o.RequestTimeout)
	}
	return patience
}

func (o *Options) validate() error {
	if o.TTL < MinTTL || o.TTL > MaxTTL || o.TTL%time.Millisecond != 0 {
		return fmt.Errorf("TTL %v must be whole milliseconds, at least %v, and at most %v", o.TTL, MinTTL, MaxTTL)
	}
	for _, duration := range []struct {
		name  string
		value time.Duration
	}{
		{"Margin", o.Margin}, {"GracePeriod", o.GracePeriod}, {"RenewEvery", o.RenewEvery},
		{"RequestTimeout", o.RequestTimeout}, {"RetryAfter", o.RetryAfter}, {"Jitter", o.Jitter},
		{"AcquireDelay", o.AcquireDelay},
	} {
		if duration.value < 0 {
			return fmt.Errorf("%s %v is negative", duration.name, duration.value)
		}
		if duration.value > MaxTTL {
			return fmt.Errorf("%s %v is longer than %v", duration.name, duration.value, MaxTTL)
		}
	}
	// A renewal whose reply is lost must leave room for another.
	needed := o.RenewEvery + o.RequestTimeout + o.RetryAfter + o.RequestTimeout
	if available := o.TTL - o.Margin - o.GracePeriod; needed > available {
		return fmt.Errorf("one lost reply would lose the lease: "+
			"RenewEvery %v + RequestTimeout %v + RetryAfter %v + RequestTimeout %v = %v, "+
			"but TTL %v − Margin %v − GracePeriod %v leaves %v; make TTL at least %v, or RenewEvery at most %v",
			o.RenewEvery, o.RequestTimeout, o.RetryAfter, o.RequestTimeout, needed,
			o.TTL, o.Margin, o.GracePeriod, available, needed+o.Margin+o.GracePeriod, max(available-(needed-o.RenewEvery), 0))
	}
	return nil
}
