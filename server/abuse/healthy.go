package main

import (
	"context"
	"crypto/tls"
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
	renewals, failed int
	p50, p99, max    time.Duration
	// Of changes, which wait for a commit.
	changes, changesFailed          int
	changeP50, changeP99, changeMax time.Duration
	// lost is how often its lease was lost, and first the first failure, as text.
	lost  int
	first string
}

// healthyClient measures. Its methods are safe for concurrent use.
type healthyClient struct {
	client *transport.Client
	slots  chan struct{} // one for each renewal that is under way
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex
	took  []time.Duration
	waits []time.Duration // of changes
	phase phase
}

// startHealthy connects to a server, and measures until stop.
func startHealthy(ctx context.Context, a attack, address string, short bool) (*healthyClient, error) {
	options := transport.Options{ClientID: "healthy"}
	options.Logger = slog.New(slog.DiscardHandler)
	if a.users {
		options.Username, options.Password = healthyUser, []byte(healthyPassword)
	}
	first, stop := context.WithTimeout(ctx, patience)
	defer stop()
	scheme := "mqtt://"
	if a.key != "" {
		scheme, options.TLS.Config = "mqtts://", &tls.Config{InsecureSkipVerify: true}
	}
	client, err := transport.Dial(first, scheme+address, options)
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
	if a.change > 0 {
		h.tasks.Go(func() { h.change(ctx) })
	}
	return h, nil
}

func (h *healthyClient) stop() {
	h.cancel()
	h.tasks.Wait()
	_ = h.client.Close()
}

// hold keeps the lease and counts its losses, until ctx ends.
func (h *healthyClient) hold(ctx context.Context, l *lease.Lease, held *lease.Tenure) {
	for {
		select {
		case <-held.Context().Done():
		case <-ctx.Done():
			return
		}
		h.mu.Lock()
		h.phase.lost++
		h.mu.Unlock()
		var err error
		if held, err = l.Acquire(ctx); err != nil {
			return
		}
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
				h.note(renewalTimeout, errors.New("too many renewals wait for their answers"))
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
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		took = renewalTimeout
	}
	h.note(took, err)
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
		h.noteChange(time.Since(start), err)
		sleep.For(ctx, changeEvery)
	}
}

func (h *healthyClient) noteChange(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits = append(h.waits, took)
	if err != nil {
		h.phase.changesFailed++
	}
}

func (h *healthyClient) note(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.took = append(h.took, took)
	if err != nil {
		h.phase.failed++
		if h.phase.first == "" {
			h.phase.first = err.Error()
		}
	}
}

// next ends a phase and begins another.
func (h *healthyClient) next() phase {
	h.mu.Lock()
	took, waits, p := h.took, h.waits, h.phase
	h.took, h.waits, h.phase = nil, nil, phase{}
	h.mu.Unlock()
	p.renewals, p.changes = len(took), len(waits)
	p.p50, p.p99, p.max = percentiles(took)
	p.changeP50, p.changeP99, p.changeMax = percentiles(waits)
	return p
}

// percentiles returns the median, the 99th percentile and the longest, or zeros if there are none.
func percentiles(of []time.Duration) (median, p99, longest time.Duration) {
	if len(of) == 0 {
		return 0, 0, 0
	}
	slices.Sort(of)
	return of[len(of)/2], of[len(of)*99/100], of[len(of)-1]
}

// String returns the percentiles as the table shows them.
func (p phase) String() string {
	if p.renewals == 0 {
		return "–"
	}
	text := fmt.Sprintf("%s / %s / %s", milliseconds(p.p50), milliseconds(p.p99), milliseconds(p.max))
	if p.changes > 0 {
		text += fmt.Sprintf("; changes %s / %s / %s", milliseconds(p.changeP50), milliseconds(p.changeP99), milliseconds(p.changeMax))
	}
	return text
}

func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
