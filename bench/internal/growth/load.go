package growth

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/transport"
)

func load() *Subject {
	return &Subject{
		Name: "load",
		about: "The load is in per cent of the capacity, which a closed loop with 256 renewals in flight on one " +
			"connection finds first. Then renewals are due at times of a clock, whatever the store does (an open loop), " +
			"and their latency counts from those times, so a pause shows in all that were due meanwhile. What is due within " +
			"0.2 ms leaves together.",
		columns: []column{{"renewals a second", []string{""}, 1}, seconds("p50"), seconds("p90"),
			seconds("p99"), seconds("p99.9")},
		sizes: []int{10, 25, 50, 75}, quick: []int{5, 10},
		run: runLoad,
	}
}

const (
	renewedNames = 1_000
	renewedTTL   = time.Minute
	// tick is how long the clock sleeps at least.
	tick = 200 * time.Microsecond
	// maxWaiting bounds how many renewals may wait for an answer at once. A store that lets so many wait is
	// too slow for the load.
	maxWaiting = 50_000
)

// renew sends what a tenure sends to renew itself.
func (c *client) renew(ctx context.Context, i int) error {
	name := fmt.Sprintf("line-%d/active", i%renewedNames)
	options := transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: renewedTTL,
		Binding: transport.Binding{Urgent: true}}
	_, err := c.other.Set(ctx, name, value, options)
	return err
}

func runLoad(ctx context.Context, c *client) ([]float64, error) {
	capacity := 0.0
	for range 2 { // the first time warms up
		var err error
		if capacity, err = c.capacity(ctx, c.window()/4); err != nil {
			return nil, err
		}
	}
	rate := capacity * float64(c.Size) / 100
	times, err := c.openLoop(ctx, rate, int(rate*c.window().Seconds()))
	if err != nil {
		return nil, err
	}
	return append([]float64{rate}, percentiles(times, 50, 90, 99, 99.9)...), nil
}

// capacity renews in a closed loop for so long, and returns the renewals of a second.
func (c *client) capacity(ctx context.Context, long time.Duration) (float64, error) {
	var done atomic.Int64
	began := time.Now()
	err := measure.Parallel(ctx, preparing, preparing, func(ctx context.Context, worker, _ int) error {
		for i := worker; time.Since(began) < long; i += preparing {
			if err := c.renew(ctx, i); err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
	return float64(done.Load()) / time.Since(began).Seconds(), err
}

// openLoop lets so many renewals be due, so many a second, and returns how long each took from the
// time at which it was due. Each has a goroutine, as the renewals of tenures have.
func (c *client) openLoop(ctx context.Context, rate float64, total int) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([]time.Duration, max(1, total))
	for i := range times {
		times[i] = -1 // makes the memory resident: a fresh page would count as latency
	}
	var renewing sync.WaitGroup
	var underWay atomic.Int64
	began := time.Now()
	for i := 0; i < len(times) && ctx.Err() == nil; {
		due := time.Duration(float64(i) / rate * float64(time.Second))
		if early := due - time.Since(began); early > 0 {
			time.Sleep(max(early, tick))
			continue
		}
		if underWay.Add(1) > maxWaiting {
			cancel(fmt.Errorf("%d renewals wait for an answer: client and store cannot do %.0f a second; "+
				"stop other programs", maxWaiting, rate))
			break
		}
		renewal := i
		renewing.Go(func() {
			defer underWay.Add(-1)
			if err := c.renew(ctx, renewal); err != nil {
				cancel(err)
			}
			times[renewal] = time.Since(began) - due
		})
		i++
	}
	renewing.Wait() // bounded: ctx is, by the patience for a size
	return times, context.Cause(ctx)
}
