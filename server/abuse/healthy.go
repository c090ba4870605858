package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// The healthy client holds a lease as a program does, with
// package lease, and counts how often it loses that. Beside it the client renews another
// lease every few milliseconds, with the same request that package lease sends, and measures
// how long each takes. A renewal starts when it is due, whether or not the one before it has
// been answered: a server that stalls for a second delays all that were due in that second,
// and all of them count.
const (
	renewEvery = 5 * time.Millisecond
	// renewalTimeout is also what a renewal that fails is taken to have lasted.
	renewalTimeout = 2 * time.Second
	// leaseTTL is short enough for an attack to take the lease away. In tests a machine that
	// is busy must not do that.
	leaseTTL      = 3 * time.Second
	shortLeaseTTL = 15 * time.Second
	// changeEvery is the pause between two changes, and changeTimeout bounds each.
	changeEvery   = 20 * time.Millisecond
	changeTimeout = 10 * time.Second
	// maxPending renewals may wait for their answers; one more counts as failed.
	maxPending = 500
)

// A phase is what the healthy client measured in one part of a run.
type phase struct {
	renewals series
	changes  series // which wait for a commit
	lost     int    // how often its lease was lost
}

// A series has the times of requests of one kind.
type series struct {
	took   []time.Duration // sorted when the phase is over
	failed int
	first  string // the first failure
}

func (s *series) note(took time.Duration, err error) {
	s.took = append(s.took, took)
	if err != nil {
		s.failed++
		s.first = cmp.Or(s.first, err.Error())
	}
}

// at returns a percentile, or 0 if there are no times.
func (s series) at(percent int) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	return s.took[min(len(s.took)*percent/100, len(s.took)-1)]
}

// served reports whether a request succeeded.
func (s series) served() bool { return len(s.took) > s.failed }

// String returns the median, the 99th percentile and the longest, in milliseconds.
func (s series) String() string {
	ms := func(percent int) float64 { return float64(s.at(percent)) / float64(time.Millisecond) }
	return fmt.Sprintf("%.1f / %.1f / %.1f", ms(50), ms(99), ms(100))
}

// String returns what the table shows.
func (p phase) String() string {
	if len(p.changes.took) == 0 {
		return p.renewals.String()
	}
	return p.renewals.String() + "; changes " + p.changes.String()
}

// healthyClient measures. Its methods are safe for concurrent use.
type healthyClient struct {
	client *transport.Client
	slots  chan struct{} // one for each renewal that is under way
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex
	phase phase
}

// startHealthy connects to a server, and measures until stop.
func startHealthy(ctx context.Context, a attack, address string, short bool) (*healthyClient, error) {
	options := transport.Options{ClientID: "healthy"}
	options.Logger = slog.New(slog.DiscardHandler)
	if a.users {
		options.Username, options.Password = healthyUser, []byte(password)
	}
	first, stop := context.WithTimeout(ctx, patience)
	defer stop()
	client, err := transport.Dial(first, "mqtt://"+address, options)
	if err != nil {
		return nil, err
	}
	ttl := leaseTTL
	if short {
		ttl = shortLeaseTTL
	}
	l, err := lease.New(client, "healthy/held", lease.Options{TTL: ttl})
	if err != nil {
		return nil, err
	}
	held, err := l.Acquire(first)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	h := &healthyClient{client: client, slots: make(chan struct{}, maxPending)}
	ctx, h.cancel = context.WithCancel(ctx)
	h.tasks.Go(func() { h.hold(ctx, l, held) })
	h.tasks.Go(func() { h.renew(ctx) })
	if a.slowDisk {
		h.tasks.Go(func() { h.change(ctx) })
	}
	return h, nil
}

func (h *healthyClient) stop() {
	h.cancel()
	h.tasks.Wait()
	_ = h.client.Close()
}

// update changes the present phase.
func (h *healthyClient) update(change func(p *phase)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.phase)
}

// hold keeps the lease and counts its losses, until ctx ends.
func (h *healthyClient) hold(ctx context.Context, l *lease.Lease, held *lease.Tenure) {
	for err := error(nil); err == nil; held, err = l.Acquire(ctx) {
		select {
		case <-held.Context().Done():
		case <-ctx.Done():
			return
		}
		h.update(func(p *phase) { p.lost++ })
	}
}

// renew renews until ctx ends, and waits for the answers.
func (h *healthyClient) renew(ctx context.Context) {
	var renewals sync.WaitGroup
	defer renewals.Wait()
	ticks := time.NewTicker(renewEvery)
	defer ticks.Stop()
	due := time.Now()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		// A ticker leaves out what its reader was too late for.
		for now := time.Now(); !due.After(now); due = due.Add(renewEvery) {
			start := due
			select {
			case h.slots <- struct{}{}:
				renewals.Go(func() {
					h.renewal(ctx, start)
					<-h.slots
				})
			default:
				h.update(func(p *phase) {
					p.renewals.note(renewalTimeout, errors.New("too many renewals wait for their answers"))
				})
			}
		}
	}
}

func (h *healthyClient) renewal(ctx context.Context, due time.Time) {
	bounded, cancel := context.WithDeadline(ctx, due.Add(renewalTimeout))
	defer cancel()
	_, err := h.client.Set(bounded, "healthy/renewed", []byte("healthy"),
		transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: leaseTTL, Binding: transport.Binding{Urgent: true}})
	took := time.Since(due)
	if err != nil {
		took = renewalTimeout
	}
	if ctx.Err() == nil {
		h.update(func(p *phase) { p.renewals.note(took, err) })
	}
}

// change changes a key again and again until ctx ends. A server with too much
// waiting for a commit still takes short requests; this value is too long for that.
func (h *healthyClient) change(ctx context.Context) {
	value := make([]byte, 4<<10)
	for i := 0; ctx.Err() == nil; i++ {
		value[0], value[1] = byte(i), byte(i>>8)
		bounded, cancel := context.WithTimeout(ctx, changeTimeout)
		start := time.Now()
		_, err := h.client.Set(bounded, "healthy/changed", value, transport.SetOptions{})
		cancel()
		h.update(func(p *phase) { p.changes.note(time.Since(start), err) })
		sleep.For(ctx, changeEvery)
	}
}

// next ends a phase and begins another.
func (h *healthyClient) next() (p phase) {
	h.update(func(present *phase) { p, *present = *present, phase{} })
	slices.Sort(p.renewals.took)
	slices.Sort(p.changes.took)
	return p
}
