package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// The healthy client is a process of its own. It holds a lease as a program does, with
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
	Renewals, Failed int
	P50, P99, Max    time.Duration
	// Of changes, which wait for a commit.
	Changes, ChangesFailed          int
	ChangeP50, ChangeP99, ChangeMax time.Duration
	// Lost is how often its lease was lost.
	Lost int
	// First is the first failure, as text.
	First string
}

// healthyClient measures. Its methods are safe for concurrent use.
type healthyClient struct {
	client *transport.Client
	slots  chan struct{} // one for each renewal that is under way

	mu    sync.Mutex
	took  []time.Duration
	waits []time.Duration // of changes
	phase phase
}

// beHealthy connects and prints a line. Each line of standard input ends a phase, and beHealthy
// prints that phase. It returns when standard input ends.
func beHealthy(t task) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	options := transport.Options{ClientID: "healthy"}
	if t.Users {
		options.Username, options.Password = healthyUser, []byte(healthyPassword)
	}
	first, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	scheme := "mqtt://"
	if t.Encrypted {
		scheme, options.TLS.Config = "mqtts://", &tls.Config{InsecureSkipVerify: true}
	}
	client, err := transport.Dial(first, scheme+t.Address, options)
	if err != nil {
		return err
	}
	defer client.Close()
	ttl := leaseTTL
	if t.Short {
		ttl = shortLeaseTTL
	}
	l, err := lease.New(client, "healthy/held", lease.Options{TTL: ttl})
	if err != nil {
		return err
	}
	h := &healthyClient{client: client, slots: make(chan struct{}, maxPending)}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	held, err := l.Acquire(first)
	if err != nil {
		return err
	}
	tasks.Go(func() { h.hold(ctx, l, held) })
	tasks.Go(func() { h.renew(ctx) })
	if t.Changes {
		tasks.Go(func() { h.change(ctx) })
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		if err := answers.Encode(h.next()); err != nil {
			return err
		}
	}
	return lines.Err()
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
		h.phase.Lost++
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
		transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: leaseTTL, Urgent: true})
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
		sleep(ctx, changeEvery)
	}
}

func (h *healthyClient) noteChange(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits = append(h.waits, took)
	if err != nil {
		h.phase.ChangesFailed++
	}
}

func (h *healthyClient) note(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.took = append(h.took, took)
	if err != nil {
		h.phase.Failed++
		if h.phase.First == "" {
			h.phase.First = err.Error()
		}
	}
}

// next ends a phase and begins another.
func (h *healthyClient) next() phase {
	h.mu.Lock()
	took, waits, p := h.took, h.waits, h.phase
	h.took, h.waits, h.phase = nil, nil, phase{}
	h.mu.Unlock()
	p.Renewals, p.Changes = len(took), len(waits)
	p.P50, p.P99, p.Max = percentiles(took)
	p.ChangeP50, p.ChangeP99, p.ChangeMax = percentiles(waits)
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
