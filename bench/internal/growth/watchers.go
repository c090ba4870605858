package growth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/transport"
)

func watchers() *Subject {
	return &Subject{
		Name: "watchers",
		about: "Watchers, each with a connection, watch one key. Another client sets it. " +
			"The last column is the time from the call of the SET until the last watcher has the notification, divided " +
			"by the watchers.",
		columns: slices.Concat(memoryOf("watcher"), timeOf("a notification"),
			[]column{seconds("to the last watcher, for each: p50")}),
		sizes: []int{2, 10, 30, 100, 300, 1_000}, quick: []int{2, 5},
		run: runWatchers,
	}
}

// audience are watchers of one key, whose value is a number.
type audience struct {
	current atomic.Int64   // the number that the key has; 0: it does not exist
	missing atomic.Int64   // watchers that have not seen it
	all     chan time.Time // when the last one saw it
}

// watch sees the changes until the watch ends.
func (a *audience) watch(watch *transport.Watch) error {
	seen := int64(-1)
	for change := range watch.Changes() {
		number, _ := strconv.ParseInt(string(change.Value), 10, 64) // no value is 0
		if number <= seen || number != a.current.Load() {
			continue // a change that was seen already
		}
		seen = number
		if a.missing.Add(-1) == 0 {
			a.all <- time.Now()
		}
	}
	return fmt.Errorf("a watch ended: %w", watch.Err())
}

// reached waits until all watchers have seen the number.
func (a *audience) reached(ctx context.Context) (at time.Time, err error) {
	late := errors.New("not all watchers have the notification in time")
	ctx, cancel := context.WithTimeoutCause(ctx, requestPatience, late)
	defer cancel()
	select {
	case at = <-a.all:
		return at, nil
	case <-ctx.Done():
		return at, context.Cause(ctx)
	}
}

func runWatchers(ctx context.Context, c *client) ([]float64, error) {
	opened, err := c.open(ctx, c.Size)
	if err != nil {
		return nil, err
	}
	const key = "press-7/recipe"
	a := &audience{all: make(chan time.Time, 1)}
	a.missing.Store(int64(c.Size))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait() // bounded: the watches are closed
	for _, connection := range opened {
		watch, err := connection.Watch(key)
		if err != nil {
			return nil, err
		}
		defer watch.Close()
		watching.Go(func() { cancel(a.watch(watch)) })
	}
	if _, err := a.reached(ctx); err != nil { // that there is no key: all are registered
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
	// The key is set often enough that the processor time of one change can be told from nothing.
	times := make([]time.Duration, choose(c, max(100, 20_000/c.Size), 5))
	for i := range times {
		a.missing.Store(int64(c.Size))
		a.current.Store(int64(i + 1))
		began := time.Now()
		if err := c.set(ctx, key, fmt.Appendf(nil, "%016d", i+1)); err != nil {
			return nil, err
		}
		at, err := a.reached(ctx)
		if err != nil {
			return nil, err
		}
		times[i] = at.Sub(began) / time.Duration(c.Size)
	}
	after, err := c.time()
	return slices.Concat(memory, after.since(before, len(times)*c.Size), percentiles(times, 50)), err
}
