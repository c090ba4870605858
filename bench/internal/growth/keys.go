package growth

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
)

func keys() *Subject {
	return &Subject{
		Name: "keys",
		about: "One client sets keys of 20 bytes to values of 16, with an expiry of an hour, and then sets random ones " +
			"of them again, 256 at a time.",
		columns: slices.Concat(memoryOf("key"), timeOf("a SET"), []column{seconds("a SET alone: p50"), seconds("p99")}),
		sizes:   []int{10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000}, quick: []int{500, 1_000},
		run: runKeys,
	}
}

// keyName returns a name of 20 bytes.
func keyName(i int) string { return fmt.Sprintf("press/value-%08d", i) }

func runKeys(ctx context.Context, c *client) ([]float64, error) {
	fill := func(ctx context.Context, _, i int) error { return c.set(ctx, keyName(i), value) }
	err := measure.Parallel(ctx, c.Size, preparing, fill)
	if err != nil {
		return nil, err
	}
	memory, err := c.steady(ctx)
	if err != nil {
		return nil, err
	}
	before, err := c.time()
	if err != nil {
		return nil, err
	}
	// A collection of the server costs as much as there are keys, so each size has as many collections for
	// each SET as a server that runs for long.
	operations := choose(c, max(200_000, c.Size), 500)
	setOne := func(ctx context.Context, _, _ int) error { return c.set(ctx, keyName(rand.N(c.Size)), value) }
	if err := measure.Parallel(ctx, operations, preparing, setOne); err != nil {
		return nil, err
	}
	after, err := c.time()
	if err != nil {
		return nil, err
	}
	alone := make([]time.Duration, choose(c, 5_000, 50))
	for i := range alone {
		began := time.Now()
		if err := setOne(ctx, 0, i); err != nil {
			return nil, err
		}
		alone[i] = time.Since(began)
	}
	return slices.Concat(memory, after.since(before, operations), percentiles(alone, 50, 99)), nil
}
