package crashtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// contest is one lease for which several clients contend.
type contest struct {
	recorder *recorder
	name     string
	ttl      time.Duration

	mu      sync.Mutex
	tenures []*holding // that may not be over
	highest hlc.Token  // of all tenures
}

// holding is one tenure.
type holding struct {
	tenure *lease.Tenure
	client string
	token  hlc.Token
}

// contend acquires the lease, holds it and releases it, again and again until ctx ends.
func (c *contest) contend(ctx context.Context, s *session, random *rand.Rand) {
	l, err := lease.New(s.Client, c.name, lease.Options{TTL: c.ttl})
	if err != nil {
		c.recorder.violated("lease.New: %v", err)
		return
	}
	for ctx.Err() == nil {
		tenure, err := l.Acquire(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, transport.ErrClosed) {
				c.recorder.violated("acquire: %v", err)
			}
			return
		}
		c.hold(ctx, s, tenure, random)
		sleep.For(ctx, time.Duration(random.IntN(50))*time.Millisecond)
	}
}

// hold looks around during a tenure, and ends it.
func (c *contest) hold(ctx context.Context, s *session, tenure *lease.Tenure, random *rand.Rand) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.ttl)
		defer cancel()
		_ = tenure.Release(ctx) // or it expires
	}()
	token, err := tenure.Token()
	if err != nil {
		return // it is over already
	}
	h := &holding{tenure: tenure, client: s.ClientID(), token: token}
	c.begin(h)
	lasts := c.ttl / 8
	if random.IntN(4) == 0 {
		lasts = 2 * c.ttl // to be renewed several times, also over a crash
	}
	until := c.recorder.now() + time.Duration(random.Int64N(int64(lasts)))
	// As if the process stood still, the lease runs out. That is rare: each restart gives
	// it its whole lifetime again, so it can take many crashes.
	runsOut := random.IntN(16) == 0
	for ctx.Err() == nil {
		c.look(h)
		sleep.For(tenure.Context(), time.Duration(1+random.IntN(20))*time.Millisecond)
		cause := context.Cause(tenure.Context())
		switch over := c.recorder.now() > until; {
		case cause != nil:
			if !errors.Is(cause, lease.ErrDeadlinePassed) && !errors.Is(cause, transport.ErrClosed) {
				c.recorder.violated("%s: the tenure of %s with token %v ended: %v", c.name, h.client, token, cause)
			}
			return
		case over && runsOut:
			tenure.StopRenewing()
		case over:
			return
		}
	}
}

// begin notes a new tenure.
func (c *contest) begin(h *holding) {
	c.recorder.count(tenures, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.token.Compare(c.highest) <= 0 {
		c.recorder.violated("%s: %s got the token %v after %v", c.name, h.client, h.token, c.highest)
	}
	c.highest = higher(c.highest, h.token)
	c.tenures = append(slices.DeleteFunc(c.tenures, func(h *holding) bool { return h.tenure.Context().Err() != nil }), h)
}

// look checks that no other tenure holds while h does.
func (c *contest) look(h *holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.tenures {
		_, err := other.tenure.Token()
		if _, mine := h.tenure.Token(); other != h && err == nil && mine == nil {
			c.recorder.violated("%s: %s holds with token %v, and %s with token %v", c.name, h.client,
				h.token, other.client, other.token)
		}
	}
}
