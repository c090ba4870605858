package growth

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/transport"
)

// client is the process of the clients, with what it measures.
type client struct {
	order
	probe *transport.Client // another client, which the items should not disturb
	base  cost              // before there are items
}

const (
	// dialing bounds how many connections are opened at once, and preparing how many requests prepare
	// a size at once.
	dialing   = 64
	preparing = 256
	// requestPatience bounds one request.
	requestPatience = 30 * time.Second
	// keepAlive is the keep-alive of the connections.
	keepAlive = 30 * time.Second
	// probeEvery is the pause between two requests of the probe.
	probeEvery = 2 * time.Millisecond
)

var value = []byte("sixteen bytes --")

// choose returns what suits the run: a small value for a quick one.
func choose[T any](c *client, usual, quick T) T {
	if c.Quick {
		return quick
	}
	return usual
}

// window is how long the state of a size is watched.
func (c *client) window() time.Duration { return choose(c, 12*time.Second, 500*time.Millisecond) }

func (c *client) dial(ctx context.Context, id string) (*transport.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	return transport.Dial(ctx, c.Address, transport.Options{ClientID: id, KeepAlive: keepAlive})
}

// open opens connections, waits for a moment, in which the server returns what it does not need any
// more, and returns what both processes have used.
func (c *client) open(ctx context.Context, connections int) ([]*transport.Client, cost, error) {
	opened := make([]*transport.Client, connections)
	err := measure.Parallel(ctx, connections, dialing, func(ctx context.Context, _, i int) (err error) {
		opened[i], err = c.dial(ctx, fmt.Sprintf("client-%d", i))
		return err
	})
	if err != nil {
		return nil, cost{}, err
	}
	idle, err := c.settled(ctx)
	return opened, idle, err
}

// cost is what the server and the clients have used.
type cost struct{ server, clients used }

// used is what a process has used: resident bytes, and seconds of processor time before and after the
// reading, which takes some itself.
type used struct{ memory, before, after float64 }

// cost returns what was used up to now. Memory is what the system counts as resident, of the clients
// after a collection; the server returns unused memory by itself every few seconds.
func (c *client) cost() (now cost, err error) {
	if now.server.before, err = processorTime(c.Server); err != nil {
		return now, fmt.Errorf("the server: %w", err)
	}
	own, _ := processorTime(os.Getpid())
	now.clients.before = own
	debug.FreeOSMemory()
	now.server.memory, err = resident(c.Server)
	now.clients.memory, _ = resident(os.Getpid())
	now.clients.after, _ = processorTime(os.Getpid())
	now.server.after, _ = processorTime(c.Server)
	return now, err
}

// settled waits until the server has returned what it does not need, and returns what was used.
func (c *client) settled(ctx context.Context) (cost, error) {
	if err := pause(ctx, c.window()/2); err != nil {
		return cost{}, err
	}
	return c.cost()
}

// memory returns the memory of one item: of the server, and of the clients.
func (c *client) memory(now cost) []float64 {
	of := func(now, base used) float64 { return max(0, now.memory-base.memory) / float64(c.Size) }
	return []float64{of(now.server, c.base.server), of(now.clients, c.base.clients)}
}

// time returns the processor time between two states for each of n operations: of the server, and of
// the clients.
func (c *client) time(before, after cost, n int) []float64 {
	of := func(before, after used) float64 { return (after.before - before.after) / float64(n) }
	return []float64{of(before.server, after.server), of(before.clients, after.clients)}
}

// askAnother sends one request after the other from the probe, and returns how long these take.
func (c *client) askAnother(ctx context.Context) ([]float64, error) {
	var times []time.Duration
	for began := time.Now(); time.Since(began) < c.window()/4; {
		asked := time.Now()
		if err := c.set(ctx, "probe/key", value); err != nil {
			return nil, err
		}
		times = append(times, time.Since(asked))
		if err := pause(ctx, probeEvery); err != nil {
			return nil, err
		}
	}
	return percentiles(times, 50, 99), nil
}

// set sets a key that is deleted after an hour.
func (c *client) set(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_, err := c.probe.Set(ctx, key, value, transport.SetOptions{TTL: time.Hour})
	return err
}

// percentiles returns percentiles of times, in seconds.
func percentiles(times []time.Duration, wanted ...float64) (seconds []float64) {
	slices.Sort(times)
	for _, percentile := range wanted {
		i := min(len(times)-1, int(float64(len(times))*percentile/100))
		seconds = append(seconds, times[i].Seconds())
	}
	return seconds
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
