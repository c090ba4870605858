package growth

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

func leases() *Subject {
	return &Subject{
		Name: "leases", Item: "lease",
		About: "One process holds the leases, with the default options and a TTL of 30 s: each is watched, and renews itself every 5 s. A connection has 10,000 leases at most, because a client may watch so many keys.",
		Metrics: join(memoryOf("lease", serverMemory, clientMemory, ""),
			timeOf("Processor time of one renewal", serverTime, clientTime, Each, 1e-6), latencyOf(aRequest, "p99")),
		sizes: []int{1_000, 3_000, 10_000, 30_000, 100_000}, quick: []int{100, 200},
		need: func(size int) need { return need{files: 1 + holders(size), memory: int64(size) * 40_000} },
		run:  runLeases,
	}
}

// holding acquires leases, and knows what becomes of them.
type holding struct {
	trace   lease.Trace
	renewed atomic.Int64
	lost    ended
}

func newHolding() *holding {
	h := &holding{}
	h.trace.Renewed = func(lease.TraceInfo) { h.renewed.Add(1) }
	h.trace.Ended = func(info lease.TraceInfo) { h.lost.note(info.Err) }
	return h
}

// acquire acquires a lease with a connection. ctx bounds the request and not the tenure.
func (h *holding) acquire(ctx context.Context, connection *transport.Client, name string, ttl time.Duration) error {
	named, err := lease.New(connection, name, lease.Options{TTL: ttl, Trace: &h.trace})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_, err = named.TryAcquire(ctx)
	return err
}

// watchRenewals lets the tenures renew themselves for the window, records what a renewal costs, and
// then how long the requests of another client take meanwhile.
func (c *client) watchRenewals(ctx context.Context, h *holding) error {
	before, err := c.cost(ctx)
	if err != nil {
		return err
	}
	renewed := h.renewed.Load()
	if err := pause(ctx, c.window()); err != nil {
		return err
	}
	renewals := h.renewed.Load() - renewed
	after, err := c.cost(ctx)
	if err != nil {
		return err
	}
	if renewals == 0 {
		return errors.New("no tenure was renewed")
	}
	c.memory(after, serverMemory, clientMemory)
	c.time(before, after, float64(renewals), serverTime, clientTime)
	// The probe costs more than a few renewals, so it comes after the time in which they are measured.
	if err := c.askAnother(ctx); err != nil {
		return err
	}
	return h.lost.err(c.Size)
}

// leasesOfOne is how many leases a connection has: as many keys as a client may watch.
const leasesOfOne = 10_000

// holders is how many connections hold so many leases.
func holders(leases int) int { return (leases + leasesOfOne - 1) / leasesOfOne }

func runLeases(ctx context.Context, c *client) error {
	connections := make([]*transport.Client, holders(c.Size))
	for i := range connections {
		var err error
		if connections[i], err = c.dial(ctx, fmt.Sprintf("holder-%d", i)); err != nil {
			return err
		}
	}
	h := newHolding()
	err := parallel(ctx, c.Size, preparing, func(ctx context.Context, i int) error {
		return h.acquire(ctx, connections[i/leasesOfOne], fmt.Sprintf("line-%d/active", i), c.ttl())
	})
	if err != nil {
		return err
	}
	return c.watchRenewals(ctx, h)
}
