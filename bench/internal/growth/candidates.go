package growth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tenurelock/tenure/lease"
)

func candidates() *Subject {
	return &Subject{
		Name: "candidates", Item: "candidate",
		About: "Candidates, each with a connection, wait for one lease with a TTL of 5 s. The holder releases it; then the next one has it. The last parts are of one release: what it costs for each candidate, and the time from the call of the release until another candidate has the lease.",
		Metrics: join(memoryOf("candidate", serverMemory, clientMemory, ""),
			timeOf("Processor time of a hand-over, for each candidate", serverTime, clientTime, Total, 1e-3),
			latencyOf("Hand-over after a release", "longest of 20")),
		sizes: crowd, quick: []int{2, 5},
		need: needConnections,
		run:  runCandidates,
	}
}

// candidatesTTL is the TTL of the lease that candidates wait for. releasePause is the least time between
// two releases: longer than the jitter, after which waiters again try at once.
const (
	candidatesTTL = 5 * time.Second
	releasePause  = candidatesTTL * 12 / 100
)

// race passes one lease on among candidates.
type race struct {
	running sync.WaitGroup
	failed  chan error     // of candidates; has room for one of each
	wins    chan time.Time // when a candidate got the lease; it then waits for release
	// release lets the holder release the lease, released gets when it does, and resume lets it be a
	// candidate again: when another one has the lease, so that it does not win against the others.
	release, resume chan struct{}
	released        chan time.Time
}

// candidate competes for the lease until ctx ends.
func (r *race) candidate(ctx context.Context, named *lease.Lease) {
	for {
		tenure, err := named.Acquire(ctx)
		if err != nil {
			r.failed <- err
			return
		}
		select {
		case r.wins <- time.Now():
		case <-ctx.Done():
			return
		}
		select {
		case <-r.release:
		case <-ctx.Done():
			return
		}
		r.released <- time.Now()
		if err := tenure.Release(ctx); err != nil {
			r.failed <- err
			return
		}
		select {
		case <-r.resume:
		case <-ctx.Done():
			return
		}
	}
}

// next waits until a candidate has the lease.
func (r *race) next(ctx context.Context) (time.Time, error) {
	timer := time.NewTimer(requestPatience)
	defer timer.Stop()
	select {
	case at := <-r.wins:
		return at, nil
	case err := <-r.failed:
		return time.Time{}, err
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-timer.C:
		return time.Time{}, fmt.Errorf("no candidate has the lease after %v", requestPatience)
	}
}

// tell lets the holder, or the last one, go on.
func (r *race) tell(ctx context.Context, what chan struct{}) error {
	select {
	case what <- struct{}{}:
		return nil
	case err := <-r.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// handOver lets the holder release the lease, and returns the time until another candidate has it.
func (r *race) handOver(ctx context.Context) (time.Duration, error) {
	if err := r.tell(ctx, r.release); err != nil {
		return 0, err
	}
	at, err := r.next(ctx)
	if err != nil {
		return 0, err
	}
	took := at.Sub(<-r.released) // sent before the release
	return took, r.tell(ctx, r.resume)
}

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
	r := &race{
		failed: make(chan error, c.Size), wins: make(chan time.Time), released: make(chan time.Time, 1),
		release: make(chan struct{}), resume: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer r.running.Wait() // bounded: the candidates end with ctx
	defer cancel()
	for _, named := range leases {
		r.running.Go(func() { r.candidate(ctx, named) })
	}
	if _, err := r.next(ctx); err != nil {
		return err
	}
	if err := pause(ctx, c.window()/2); err != nil { // all others wait then
		return err
	}
	before, err := c.cost(ctx)
	if err != nil {
		return err
	}
	c.memory(before, serverMemory, clientMemory)
	handOvers := 20
	if c.Quick {
		handOvers = 3
	}
	times := make([]time.Duration, handOvers)
	for i := range times {
		if times[i], err = r.handOver(ctx); err != nil {
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
