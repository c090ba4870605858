package growth

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/transport"
)

func watchers() *Subject {
	return &Subject{
		Name: "watchers", Item: "watcher",
		About: "Watchers, each with a connection, watch one key. Another client sets it. The last parts are of one SET: what it costs for each watcher, and the time from its call until the last watcher has the notification, divided by the watchers.",
		Metrics: join(memoryOf("watcher", serverMemory, clientMemory, ""),
			timeOf("Processor time of a notification", serverTime, clientTime, Total, 2e-5),
			[]Metric{{Panel: "Time to the last watcher, for each", Name: "p50", Unit: Seconds, Kind: Total, Noise: 2 * latencyNoise, key: latency50}}),
		sizes: crowd, quick: []int{2, 5},
		need: needConnections,
		run:  runWatchers,
	}
}

// A key is set often enough that the processor time of one change can be told from nothing.
func changes(quick bool, watchers int) int {
	if quick {
		return 5
	}
	return max(100, 20_000/watchers)
}

// audience are watchers of one key, whose value is a number.
type audience struct {
	watching sync.WaitGroup
	current  atomic.Int64   // the number that the key has; 0: it does not exist
	missing  atomic.Int64   // watchers that have not seen it
	all      chan time.Time // when the last one saw it
}

// watch sees the changes until ctx ends, or returns an error if the watch ends.
func (a *audience) watch(ctx context.Context, watch *transport.Watch) error {
	defer watch.Close()
	for seen := int64(-1); ; {
		select {
		case change, open := <-watch.Changes():
			if !open {
				return fmt.Errorf("a watch ended: %w", watch.Err())
			}
			number, _ := strconv.ParseInt(string(change.Value), 10, 64) // no value is 0
			if number <= seen || number != a.current.Load() {
				continue // a change that was seen already
			}
			seen = number
			if a.missing.Add(-1) == 0 {
				a.all <- time.Now()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// reached waits until all watchers have seen the number.
func (a *audience) reached(ctx context.Context) (time.Time, error) {
	timer := time.NewTimer(requestPatience)
	defer timer.Stop()
	select {
	case at := <-a.all:
		return at, nil
	case <-timer.C:
		return time.Time{}, fmt.Errorf("%d watchers have no notification after %v", a.missing.Load(), requestPatience)
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

func runWatchers(ctx context.Context, c *client) error {
	opened, _, err := c.open(ctx)
	if err != nil {
		return err
	}
	const key = "press-7/recipe"
	watches := make([]*transport.Watch, c.Size)
	for i, connection := range opened {
		if watches[i], err = connection.Watch(key); err != nil {
			return err
		}
	}
	a := &audience{all: make(chan time.Time, 1)}
	a.missing.Store(int64(c.Size))
	ctx, cancel := context.WithCancelCause(ctx)
	defer a.watching.Wait() // bounded: the watchers end with ctx
	defer cancel(nil)
	for _, watch := range watches {
		a.watching.Go(func() {
			if err := a.watch(ctx, watch); err != nil {
				cancel(err)
			}
		})
	}
	if _, err := a.reached(ctx); err != nil { // that there is no key: all are registered
		return err
	}
	if err := pause(ctx, c.window()/2); err != nil { // the server returns unused memory
		return err
	}
	before, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.memory(before, serverMemory, clientMemory)
	times := make([]time.Duration, changes(c.Quick, c.Size))
	for i := range times {
		a.missing.Store(int64(c.Size))
		a.current.Store(int64(i + 1))
		began := time.Now()
		if err := c.number(ctx, key, i+1); err != nil {
			return err
		}
		at, err := a.reached(ctx)
		if err != nil {
			return err
		}
		times[i] = at.Sub(began)
	}
	after, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.time(before, after, float64(len(times)), serverTime, clientTime)
	c.latency(times, latency50, "")
	return nil
}

// number sets a key to a number.
func (c *client) number(ctx context.Context, key string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_, err := c.probe.Set(ctx, key, fmt.Appendf(nil, "%016d", n), transport.SetOptions{})
	return err
}
