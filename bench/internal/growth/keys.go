package growth

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tenurelock/tenure/transport"
)

func keys() *Subject {
	return &Subject{
		Name: "keys", Item: "key",
		About: "One client sets keys of 20 bytes to values of 16, with an expiry of an hour, and then sets random ones of them again, 256 at a time. Memory of the clients is left out: they keep nothing.",
		Metrics: join([]Metric{{Panel: "Memory of one key", Name: "server", Unit: Bytes, Kind: Total, Noise: memoryNoise, key: serverMemory}},
			timeOf("Processor time of a SET", serverTime, clientTime, Each, 1e-6), latencyOf("A SET of a random key, alone", "p99")),
		sizes: []int{10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000}, quick: []int{500, 1_000},
		need: func(size int) need { return need{files: 2, memory: int64(size)*1_000 + 64*megabyte} },
		run:  runKeys,
	}
}

// keyName returns a name of 20 bytes.
func keyName(i int) string { return fmt.Sprintf("press/value-%08d", i) }

func runKeys(ctx context.Context, c *client) error {
	set := func(ctx context.Context, i int) error {
		ctx, cancel := context.WithTimeout(ctx, requestPatience)
		defer cancel()
		_, err := c.probe.Set(ctx, keyName(i), value, transport.SetOptions{TTL: time.Hour})
		return err
	}
	if err := parallel(ctx, c.Size, preparing, set); err != nil {
		return err
	}
	// A collection of the server costs as much as there are keys, so each size has as many collections for
	// each SET as a server that runs for long.
	operations, alone := max(200_000, c.Size), 5_000
	if c.Quick {
		operations, alone = 500, 50
	}
	if err := pause(ctx, c.window()/2); err != nil { // what the first SETs left behind is not part of it
		return err
	}
	before, err := c.cost(ctx)
	if err != nil {
		return err
	}
	err = parallel(ctx, operations, preparing, func(ctx context.Context, _ int) error { return set(ctx, rand.N(c.Size)) })
	if err != nil {
		return err
	}
	after, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.time(before, after, float64(operations), serverTime, clientTime)
	times := make([]time.Duration, alone)
	for i := range times {
		if times[i], err = c.timed(ctx, keyName(rand.N(c.Size))); err != nil {
			return err
		}
	}
	c.latency(times, latency50, latency99)
	if err := pause(ctx, c.window()/2); err != nil { // the server returns unused memory
		return err
	}
	settled, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.values[serverMemory] = max(0, settled.serverMemory-c.base.serverMemory)
	return nil
}
