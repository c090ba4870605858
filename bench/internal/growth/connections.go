package growth

import (
	"context"
	"fmt"

	"github.com/tenurelock/tenure/transport"
)

func connections() *Subject {
	return &Subject{
		Name: "connections", Item: "connection",
		About: "One process opens the connections. First they are idle; then each holds a lease with a TTL of 30 s, and renews it every 5 s.",
		Metrics: join(memoryOf("connection", serverIdleMemory, clientIdleMemory, ", idle"),
			memoryOf("connection", serverMemory, clientMemory, ", with a lease"),
			timeOf("Processor time to open a connection", serverIdleTime, clientIdleTime, Total, 0.05),
			timeOf("Processor time of a renewal", serverTime, clientTime, Each, 5e-6), latencyOf(aRequest, "p99")),
		sizes: []int{100, 300, 1_000, 3_000, 10_000}, quick: []int{10, 20},
		need: needConnections,
		run:  runConnections,
	}
}

func needConnections(size int) need { return need{files: size, memory: int64(size) * 250_000} }

func runConnections(ctx context.Context, c *client) error {
	opened, idle, err := c.open(ctx)
	if err != nil {
		return err
	}
	c.memory(idle, serverIdleMemory, clientIdleMemory)
	c.time(c.base, idle, 1, serverIdleTime, clientIdleTime)
	h := newHolding()
	err = parallel(ctx, c.Size, preparing, func(ctx context.Context, i int) error {
		return h.acquire(ctx, opened[i], fmt.Sprintf("line-%d/active", i), c.ttl())
	})
	if err != nil {
		return err
	}
	return c.watchRenewals(ctx, h)
}

// open opens a connection for each item, waits for a moment, in which the server returns what it does
// not need any more, and returns what both processes have used.
func (c *client) open(ctx context.Context) ([]*transport.Client, cost, error) {
	opened, err := c.dialAll(ctx)
	if err != nil {
		return nil, cost{}, err
	}
	if err := pause(ctx, c.window()/2); err != nil {
		return nil, cost{}, err
	}
	idle, err := c.cost(ctx)
	return opened, idle, err
}
