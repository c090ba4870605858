package growth

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// leasesOfOne is how many leases a connection has: as many keys as a client may watch.
const leasesOfOne = 10_000

func leases() *Subject {
	return &Subject{
		Name: "leases",
		about: "One process holds the leases, with the default options and a TTL of 30 s: each is watched, and renews " +
			"itself every 5 s. A connection has 10,000 leases at most, because a client may watch so many keys.",
		columns: slices.Concat(memoryOf("lease"), timeOf("a renewal")),
		sizes:   []int{1_000, 3_000, 10_000, 30_000, 100_000}, quick: []int{100, 200},
		run: func(ctx context.Context, c *client) ([]float64, error) {
			opened, err := c.open(ctx, (c.Size+leasesOfOne-1)/leasesOfOne)
			if err != nil {
				return nil, err
			}
			return c.hold(ctx, opened)
		},
	}
}

func connections() *Subject {
	return &Subject{
		Name: "connections",
		about: "One process opens the connections. First they are idle; then each holds a lease with a TTL of 30 s, " +
			"and renews it every 5 s.",
		columns: slices.Concat(memoryOf("connection, idle"), timeOf("opening a connection"),
			memoryOf("connection, with a lease"), timeOf("a renewal")),
		sizes: []int{100, 300, 1_000, 3_000, 10_000}, quick: []int{10, 20},
		run: func(ctx context.Context, c *client) ([]float64, error) {
			before, err := c.time()
			if err != nil {
				return nil, err
			}
			opened, err := c.open(ctx, c.Size)
			if err != nil {
				return nil, err
			}
			after, err := c.time()
			if err != nil {
				return nil, err
			}
			idle, err := c.steady(ctx)
			if err != nil {
				return nil, err
			}
			held, err := c.hold(ctx, opened)
			return slices.Concat(idle, after.since(before, c.Size), held), err
		},
	}
}

// hold acquires the leases, divided among the connections, lets them renew themselves for the window,
// and returns what memory they take, and what a renewal costs.
func (c *client) hold(ctx context.Context, opened []*transport.Client) ([]float64, error) {
	var renewed, lost atomic.Int64
	options := lease.Options{TTL: choose(c, 30*time.Second, 1500*time.Millisecond), Trace: &lease.Trace{
		Renewed: func(lease.TraceInfo) { renewed.Add(1) },
		Ended:   func(lease.TraceInfo) { lost.Add(1) },
	}}
	err := measure.Parallel(ctx, c.Size, preparing, func(ctx context.Context, _, i int) error {
		named, err := lease.New(opened[i*len(opened)/c.Size], fmt.Sprintf("line-%d/active", i), options)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, requestPatience)
		defer cancel()
		_, err = named.TryAcquire(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	before, err := c.time()
	if err != nil {
		return nil, err
	}
	renewedBefore := renewed.Load()
	sleep.For(ctx, c.window())
	renewals := int(renewed.Load() - renewedBefore)
	after, err := c.time()
	if err != nil {
		return nil, err
	}
	if renewals == 0 || lost.Load() > 0 {
		return nil, fmt.Errorf("%d renewals, and %d of %d tenures ended", renewals, lost.Load(), c.Size)
	}
	memory, err := c.memory()
	return slices.Concat(memory.since(c.base, c.Size), after.since(before, renewals)), err
}
