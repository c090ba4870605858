package transport

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// pauses are the times that a client waits between attempts to connect.
//
// With several addresses, a server that stands by may take the place of the lost one after about a
// second. So the client asks often at first. That costs each server that stands by up to four TLS
// handshakes a second for each client, for soonFor at most: some 4,000 a second with 1,000 clients. How
// many are under way at once has a limit there (server.Options.MaxUnauthenticated). A server that was
// elected and loads has none of this: connections wait for it in the queue of its socket.
type pauses struct{ soon, later *backoff.ExponentialBackOff }

const (
	// soonFor is how long after a loss a client with several addresses makes pauses of soonMax at
	// most, on average.
	soonFor = 5 * time.Second
	soonMax = 250 * time.Millisecond
)

func newPauses(options *Options, servers int) *pauses {
	grow := func(from, to, limit time.Duration) *backoff.ExponentialBackOff {
		return backoff.NewExponentialBackOff(backoff.WithInitialInterval(from), backoff.WithMaxInterval(to), backoff.WithMaxElapsedTime(limit))
	}
	if servers == 1 {
		return &pauses{later: grow(options.ReconnectMin, options.ReconnectMax, 0)}
	}
	most := max(options.ReconnectMin, min(soonMax, options.ReconnectMax))
	return &pauses{grow(options.ReconnectMin, most, soonFor), grow(most, options.ReconnectMax, 0)}
}

// next returns how long to wait now.
func (p *pauses) next() time.Duration {
	if p.soon != nil {
		if pause := p.soon.NextBackOff(); pause != backoff.Stop {
			return pause
		}
	}
	return p.later.NextBackOff()
}

// reset begins anew, after the loss of a connection.
func (p *pauses) reset() {
	if p.soon != nil {
		p.soon.Reset()
	}
	p.later.Reset()
}
