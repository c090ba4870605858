package growth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sync/errgroup"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/transport"
)

// childVariable has the order for a process of clients.
const childVariable = "TENURE_GROWTH"

// order is what a process of clients is to measure.
type order struct {
	Subject string
	Size    int
	Address string
	Server  int // the id of its process
	Quick   bool
}

// reply is what it has measured.
type reply struct {
	Values map[string]float64
	// Used is the processor time of the process.
	Used time.Duration
}

// shareOf returns the share of all processors that the process used within a time.
func (r reply) shareOf(elapsed time.Duration) float64 {
	return float64(r.Used) / float64(elapsed) / float64(runtime.NumCPU())
}

// ServeChild returns at once, unless Run has started this process to be the clients: then it measures,
// prints what it has measured, and exits.
func ServeChild() {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	// Connections end with the process: the server of this size is not needed any more.
	peer.RunChild(func(ctx context.Context) error { return serve(ctx, text) })
}

func serve(ctx context.Context, text string) error {
	c := &client{values: make(map[string]float64)}
	if err := json.Unmarshal([]byte(text), &c.order); err != nil {
		return err
	}
	i := slices.IndexFunc(All(), func(s *Subject) bool { return s.Name == c.Subject })
	if i < 0 {
		return fmt.Errorf("there is no subject %q", c.Subject)
	}
	var err error
	if c.probe, err = c.dial(ctx, "probe"); err != nil {
		return err
	}
	if c.base, err = c.cost(ctx); err != nil {
		return err
	}
	if err := All()[i].run(ctx, c); err != nil {
		return err
	}
	used, _ := measure.ProcessorTime(os.Getpid())
	return json.NewEncoder(os.Stdout).Encode(reply{c.values, used})
}

// client is the process of the clients, with what it measures.
type client struct {
	order
	probe  *transport.Client // another client, which the items should not disturb
	base   cost              // before there are items
	values map[string]float64
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

func (c *client) dial(ctx context.Context, id string) (*transport.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	return transport.Dial(ctx, c.Address, transport.Options{ClientID: id, KeepAlive: keepAlive})
}

// dialAll opens a connection for each item.
func (c *client) dialAll(ctx context.Context) ([]*transport.Client, error) {
	clients := make([]*transport.Client, c.Size)
	err := parallel(ctx, c.Size, dialing, func(ctx context.Context, i int) (err error) {
		clients[i], err = c.dial(ctx, fmt.Sprintf("client-%d", i))
		return err
	})
	return clients, err
}

// parallel calls do for each of n numbers, so many at a time, until one fails.
func parallel(ctx context.Context, n, atOnce int, do func(ctx context.Context, i int) error) error {
	tasks, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(n, atOnce) {
		tasks.Go(func() error {
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if i >= n {
					return nil
				}
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return context.Cause(ctx)
		})
	}
	return tasks.Wait()
}

// window is how long the state of a size is watched.
func (c *client) window() time.Duration {
	if c.Quick {
		return 500 * time.Millisecond
	}
	return 12 * time.Second
}

// ttl is the TTL of the leases: each is renewed at least once within a window.
func (c *client) ttl() time.Duration {
	if c.Quick {
		return 1500 * time.Millisecond
	}
	return 30 * time.Second
}

// cost is what both processes have used.
type cost struct {
	serverMemory, clientMemory float64 // bytes
	before, after              times   // the reading itself takes processor time
}

// times are seconds of processor time.
type times struct{ server, client float64 }

func (c *client) times() (times, error) {
	server, known := measure.ProcessorTime(c.Server)
	own, _ := measure.ProcessorTime(os.Getpid())
	if !known {
		return times{}, errors.New("the processor time of the server is not known: it has ended, or this system does not say; growth is measured on Linux")
	}
	return times{server.Seconds(), own.Seconds()}, nil
}

// cost returns what was used up to now. Memory is what the system counts as resident, of the client
// after a collection; the server returns unused memory by itself every few seconds.
func (c *client) cost(ctx context.Context) (now cost, err error) {
	if now.before, err = c.times(); err != nil {
		return now, err
	}
	debug.FreeOSMemory()
	if now.serverMemory, err = resident(ctx, c.Server); err != nil {
		return now, err
	}
	if now.clientMemory, err = resident(ctx, os.Getpid()); err != nil {
		return now, err
	}
	now.after, err = c.times()
	return now, err
}

func resident(ctx context.Context, id int) (float64, error) {
	p, err := process.NewProcessWithContext(ctx, int32(id))
	if err != nil {
		return 0, err
	}
	memory, err := p.MemoryInfoWithContext(ctx)
	if err != nil {
		return 0, err
	}
	return float64(memory.RSS), nil
}

// memory records the memory of all items under the names of two metrics.
func (c *client) memory(now cost, server, clients string) {
	c.values[server] = max(0, now.serverMemory-c.base.serverMemory)
	c.values[clients] = max(0, now.clientMemory-c.base.clientMemory)
}

// time records the processor time between two states, for each of n operations.
func (c *client) time(before, after cost, n float64, server, clients string) {
	c.values[server] = (after.before.server - before.after.server) / n
	c.values[clients] = (after.before.client - before.after.client) / n
}

// probeEvery is the pause between two requests of the probe.
const probeEvery = 2 * time.Millisecond

// askAnother sends one request after the other from the probe, and records how long these take.
func (c *client) askAnother(ctx context.Context) error {
	var times []time.Duration
	for began := time.Now(); time.Since(began) < c.window()/4; {
		took, err := c.timed(ctx, "probe/key")
		if err != nil {
			return err
		}
		times = append(times, took)
		if err := pause(ctx, probeEvery); err != nil {
			return err
		}
	}
	c.latency(times, latency50, latency99)
	return nil
}

func (c *client) timed(ctx context.Context, key string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	began := time.Now()
	_, err := c.probe.Set(ctx, key, value, transport.SetOptions{TTL: time.Hour})
	return time.Since(began), err
}

// latency records percentiles. p99 may be empty.
func (c *client) latency(times []time.Duration, p50, p99 string) {
	slices.Sort(times)
	c.values[p50] = times[len(times)/2].Seconds()
	if p99 != "" {
		c.values[p99] = times[len(times)*99/100].Seconds()
	}
}

// between returns a random time.
func between(least, most time.Duration) time.Duration { return least + rand.N(most-least) }

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

var value = []byte("sixteen bytes --")

// ended remembers the first tenure that ended by itself.
type ended struct {
	mu    sync.Mutex
	count int
	first error
}

func (e *ended) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count++; e.first == nil {
		e.first = err
	}
}

// err returns an error if a tenure ended.
func (e *ended) err(of int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d tenures ended, the first one because of: %w", e.count, of, e.first)
}
