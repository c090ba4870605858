package growth

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// client is the process of the clients, with what it measures.
type client struct {
	order
	other *transport.Client // beside the items
	base  usage             // memory, before there are items
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

// open opens connections.
func (c *client) open(ctx context.Context, connections int) ([]*transport.Client, error) {
	opened := make([]*transport.Client, connections)
	return opened, measure.Parallel(ctx, connections, dialing, func(ctx context.Context, _, i int) (err error) {
		opened[i], err = c.dial(ctx, fmt.Sprintf("client-%d", i))
		return err
	})
}

// usage is what the process of the server has used, and what the process of the clients has used.
type usage [2]float64

func (c *client) each(ask func(process int) (float64, error)) (u usage, err error) {
	if u[0], err = ask(c.Server); err != nil {
		return u, fmt.Errorf("the server: %w", err)
	}
	u[1], err = ask(os.Getpid())
	return u, err
}

// time returns the processor time up to now, in seconds.
func (c *client) time() (usage, error) { return c.each(processorTime) }

// memory returns what the system counts as resident, of the clients after a collection; the server
// returns unused memory by itself every few seconds.
func (c *client) memory() (usage, error) {
	debug.FreeOSMemory()
	return c.each(resident)
}

// steady returns the memory of an item when the server has returned what it does not need.
func (c *client) steady(ctx context.Context) ([]float64, error) {
	sleep.For(ctx, c.window()/2)
	now, err := c.memory()
	return now.since(c.base, c.Size), err
}

// since returns what was used from before on for each of n items.
func (u usage) since(before usage, n int) []float64 {
	return []float64{max(0, u[0]-before[0]) / float64(n), max(0, u[1]-before[1]) / float64(n)}
}

// set sets a key that is deleted after an hour.
func (c *client) set(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_, err := c.other.Set(ctx, key, value, transport.SetOptions{TTL: time.Hour})
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
