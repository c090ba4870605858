package growth

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// The keys of the values of a point.
const (
	serverMemory     = "server memory"
	clientMemory     = "client memory"
	serverIdleMemory = "server idle memory"
	clientIdleMemory = "client idle memory"
	serverTime       = "server time"
	clientTime       = "client time"
	serverIdleTime   = "server idle time"
	clientIdleTime   = "client idle time"
	latency50        = "p50"
	latency99        = "p99"
)

const (
	megabyte = 1 << 20
	// memoryNoise is a difference of resident memory that means nothing.
	memoryNoise = 4 * megabyte
	// latencyNoise is a difference of latencies that means nothing, in seconds.
	latencyNoise = 50e-6
)

// All returns the subjects, in the order of the document.
func All() []*Subject {
	return []*Subject{leases(), connections(), keys(), candidates(), watchers()}
}

// memoryOf returns the metrics of the memory of an item.
func memoryOf(item, server, clients, state string) []Metric {
	panel := "Memory of one " + item
	return []Metric{
		{Panel: panel, Name: "server" + state, Unit: Bytes, Kind: Total, Noise: memoryNoise, key: server},
		{Panel: panel, Name: "clients" + state, Unit: Bytes, Kind: Total, Noise: memoryNoise, key: clients},
	}
}

// timeOf returns the metrics of processor time.
func timeOf(panel, server, clients string, kind Kind, noise float64) []Metric {
	return []Metric{
		{Panel: panel, Name: "server", Unit: Seconds, Kind: kind, Noise: noise, key: server},
		{Panel: panel, Name: "clients", Unit: Seconds, Kind: kind, Noise: noise, key: clients},
	}
}

func latencyOf(panel string) []Metric {
	return []Metric{
		{Panel: panel, Name: "p50", Unit: Seconds, Kind: Each, Noise: latencyNoise, key: latency50},
		{Panel: panel, Name: "p99", Unit: Seconds, Kind: Each, Noise: latencyNoise, key: latency99},
	}
}

func join(metrics ...[]Metric) (all []Metric) {
	for _, m := range metrics {
		all = append(all, m...)
	}
	return all
}

const aRequest = "A request of another client"

func leases() *Subject {
	return &Subject{
		Name: "leases", Item: "lease",
		About: "One process holds the leases, with the default options and a TTL of 30 s: each is watched, and renews itself every 10 s. A connection has 10,000 leases at most, because a client may watch so many keys.",
		Metrics: join(memoryOf("lease", serverMemory, clientMemory, ""),
			timeOf("Processor time of one renewal", serverTime, clientTime, Each, 1e-6), latencyOf(aRequest)),
		sizes: []int{1_000, 3_000, 10_000, 30_000, 100_000}, quick: []int{100, 200},
		need: func(size int) need { return need{files: 1 + holders(size), memory: int64(size) * 40_000} },
		run:  runLeases,
	}
}

// holding acquires leases, and knows what becomes of them.
type holding struct {
	trace   lease.Trace
	renewed atomic.Int64
	lost    ended
}

func newHolding() *holding {
	h := &holding{}
	h.trace.Renewed = func(lease.RenewedInfo) { h.renewed.Add(1) }
	h.trace.Ended = func(info lease.EndedInfo) { h.lost.note(info.Cause) }
	return h
}

// acquire acquires a lease with a connection. ctx bounds the request and not the tenure.
func (h *holding) acquire(ctx context.Context, connection *transport.Client, name string, ttl time.Duration) error {
	named, err := lease.New(connection, name, lease.Options{TTL: ttl, Trace: &h.trace})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	_, err = named.TryAcquire(ctx)
	return err
}

// watchRenewals lets the tenures renew themselves for the window, and returns how often they did and
// what that cost.
func (c *client) watchRenewals(ctx context.Context, h *holding) (renewals int64, before, after cost, err error) {
	if before, err = c.cost(ctx); err != nil {
		return 0, before, after, err
	}
	renewed := h.renewed.Load()
	if err = c.watch(ctx); err != nil {
		return 0, before, after, err
	}
	renewals = h.renewed.Load() - renewed
	if after, err = c.cost(ctx); err != nil {
		return 0, before, after, err
	}
	if err = h.lost.err(c.Size); err == nil && renewals == 0 {
		err = errors.New("no tenure was renewed")
	}
	return renewals, before, after, err
}

// leasesOfOne is how many leases a connection has: as many keys as a client may watch.
const leasesOfOne = 10_000

// holders is how many connections hold so many leases.
func holders(leases int) int { return (leases + leasesOfOne - 1) / leasesOfOne }

func runLeases(ctx context.Context, c *client) error {
	connections := make([]*transport.Client, holders(c.Size))
	for i := range connections {
		var err error
		if connections[i], err = c.dial(ctx, fmt.Sprintf("holder-%d", i)); err != nil {
			return err
		}
	}
	h := newHolding()
	err := parallel(ctx, c.Size, preparing, func(ctx context.Context, i int) error {
		return h.acquire(ctx, connections[i/leasesOfOne], fmt.Sprintf("line-%d/active", i), c.ttl())
	})
	if err != nil {
		return err
	}
	renewals, before, after, err := c.watchRenewals(ctx, h)
	if err != nil {
		return err
	}
	c.memory(after, serverMemory, clientMemory)
	c.time(before, after, float64(renewals), serverTime, clientTime)
	return nil
}

func connections() *Subject {
	return &Subject{
		Name: "connections", Item: "connection",
		About: "One process opens the connections. First they are idle; then each holds a lease with a TTL of 30 s, and renews it every 10 s.",
		Metrics: join(memoryOf("connection", serverIdleMemory, clientIdleMemory, ", idle"),
			memoryOf("connection", serverMemory, clientMemory, ", with a lease"),
			timeOf("Processor time to open a connection", serverIdleTime, clientIdleTime, Total, 0.05),
			timeOf("Processor time of a renewal", serverTime, clientTime, Each, 5e-6), latencyOf(aRequest)),
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
	renewals, before, after, err := c.watchRenewals(ctx, h)
	if err != nil {
		return err
	}
	c.memory(after, serverMemory, clientMemory)
	c.time(before, after, float64(renewals), serverTime, clientTime)
	return nil
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

func keys() *Subject {
	return &Subject{
		Name: "keys", Item: "key",
		About: "One client sets keys of 20 bytes to values of 16, with an expiry of an hour, and then sets random ones of them again, 256 at a time. Memory of the clients is left out: they keep nothing.",
		Metrics: join([]Metric{{Panel: "Memory of one key", Name: "server", Unit: Bytes, Kind: Total, Noise: memoryNoise, key: serverMemory}},
			timeOf("Processor time of a SET", serverTime, clientTime, Each, 1e-6), latencyOf("A SET of a random key, alone")),
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
	operations, alone := 200_000, 5_000
	if c.Quick {
		operations, alone = 500, 50
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

// crowd are the sizes of what is around one key.
var crowd = []int{2, 10, 30, 100, 300, 1_000}

func candidates() *Subject {
	return &Subject{
		Name: "candidates", Item: "candidate",
		About: "Candidates, each with a connection, wait for one lease with a TTL of 5 s. The holder releases it; then the next one has it. The last parts are of one release: what it costs for each candidate, and the time from the call of the release until another candidate has the lease.",
		Metrics: join(memoryOf("candidate", serverMemory, clientMemory, ""),
			timeOf("Processor time of a hand-over, for each candidate", serverTime, clientTime, Total, 1e-3),
			latencyOf("Hand-over after a release")),
		sizes: crowd, quick: []int{2, 5},
		need: needConnections,
		run:  runCandidates,
	}
}

// candidatesTTL is that of the lease of candidates, and releasePause the least time between two releases:
// longer than the jitter, after which waiters again try at once.
const (
	candidatesTTL = 5 * time.Second
	releasePause  = candidatesTTL * 12 / 100
)

func runCandidates(ctx context.Context, c *client) error {
	opened, _, err := c.open(ctx)
	if err != nil {
		return err
	}
	leases := make([]*lease.Lease, c.Size)
	for i, connection := range opened {
		if leases[i], err = lease.New(connection, "press-7/active", lease.Options{TTL: candidatesTTL}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	wins := make(chan time.Time) // the winner then waits until it is told to release
	failed := make(chan error, c.Size)
	release, resume := make(chan struct{}), make(chan struct{})
	released := make(chan time.Time, 1)
	var left atomic.Int64
	left.Store(int64(c.Size))
	done := make(chan struct{})
	for _, named := range leases {
		go func() { // ends with ctx, and the last one closes done
			defer func() {
				if left.Add(-1) == 0 {
					close(done)
				}
			}()
			for {
				tenure, err := named.Acquire(ctx)
				if err != nil {
					failed <- err
					return
				}
				select {
				case wins <- time.Now():
				case <-ctx.Done():
					return
				}
				select {
				case <-release:
				case <-ctx.Done():
					return
				}
				released <- time.Now()
				if err := tenure.Release(ctx); err != nil {
					failed <- err
					return
				}
				select {
				case <-resume: // another one has the lease
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	defer func() {
		cancel()
		<-done // bounded: the candidates end with ctx
	}()
	next := func() (time.Time, error) {
		timer := time.NewTimer(requestPatience)
		defer timer.Stop()
		select {
		case at := <-wins:
			return at, nil
		case err := <-failed:
			return time.Time{}, err
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-timer.C:
			return time.Time{}, fmt.Errorf("no candidate has the lease after %v", requestPatience)
		}
	}
	tell := func(what chan struct{}) error {
		select {
		case what <- struct{}{}:
			return nil
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if _, err := next(); err != nil {
		return err
	}
	settle := c.window() / 2 // all others wait then
	if err := pause(ctx, settle); err != nil {
		return err
	}
	waiting, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.memory(waiting, serverMemory, clientMemory)
	handOvers := 20
	if c.Quick {
		handOvers = 3
	}
	times := make([]time.Duration, handOvers)
	before, err := c.cost(ctx)
	if err != nil {
		return err
	}
	for i := range times {
		if err := tell(release); err != nil {
			return err
		}
		at, err := next()
		if err != nil {
			return err
		}
		times[i] = at.Sub(<-released) // sent before the release
		if err := tell(resume); err != nil {
			return err
		}
		if err := pause(ctx, between(releasePause, releasePause*5/4)); err != nil {
			return err
		}
	}
	after, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.time(before, after, float64(handOvers), serverTime, clientTime)
	c.latency(times, latency50, latency99)
	return nil
}

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

func runWatchers(ctx context.Context, c *client) error {
	opened, _, err := c.open(ctx)
	if err != nil {
		return err
	}
	const key = "press-7/recipe"
	var (
		current atomic.Int64 // the number that the key has; 0: it does not exist
		missing atomic.Int64 // watchers that have not seen it
	)
	missing.Store(int64(c.Size))
	all := make(chan time.Time, 1)
	var left atomic.Int64
	left.Store(int64(c.Size))
	done := make(chan struct{})
	watches := make([]*transport.Watch, c.Size)
	for i, connection := range opened {
		if watches[i], err = connection.Watch(key); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	for _, watch := range watches {
		go func() { // ends with ctx, and the last one closes done
			defer func() {
				watch.Close()
				if left.Add(-1) == 0 {
					close(done)
				}
			}()
			for seen := int64(-1); ; {
				select {
				case change, open := <-watch.Changes():
					if !open {
						cancel(fmt.Errorf("a watch ended: %w", watch.Err()))
						return
					}
					number, _ := strconv.ParseInt(string(change.Value), 10, 64)
					if number <= seen || number != current.Load() {
						continue
					}
					seen = number
					if missing.Add(-1) == 0 {
						all <- time.Now()
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	defer func() {
		cancel(nil)
		<-done // bounded: the watchers end with ctx
	}()
	// reached waits until all watchers have seen the number.
	reached := func() (time.Time, error) {
		timer := time.NewTimer(requestPatience)
		defer timer.Stop()
		select {
		case at := <-all:
			return at, nil
		case <-timer.C:
			return time.Time{}, fmt.Errorf("%d of %d watchers have no notification after %v", missing.Load(), c.Size, requestPatience)
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
	if _, err := reached(); err != nil { // that there is no key: all are registered
		return err
	}
	if err := pause(ctx, c.window()/2); err != nil { // the server returns unused memory
		return err
	}
	times := make([]time.Duration, changes(c.Quick, c.Size))
	before, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.memory(before, serverMemory, clientMemory)
	for i := range times {
		missing.Store(int64(c.Size))
		current.Store(int64(i + 1))
		began := time.Now()
		if err := c.number(ctx, key, i+1); err != nil {
			return err
		}
		at, err := reached()
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
