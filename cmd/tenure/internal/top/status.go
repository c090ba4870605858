package top

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/server/activity"
)

const (
	// pollEvery is how often the status page is asked, and pollTimeout bounds each answer.
	pollEvery   = 500 * time.Millisecond
	pollTimeout = 5 * time.Second
)

// Status is the status page of a store. It is a Source, and safe for concurrent use.
type Status struct {
	page  *adminclient.Page
	ready chan struct{}

	mu      sync.Mutex
	state   activity.State
	fetched time.Time // zero: never
	problem error
}

var _ Source = (*Status)(nil)

// NewStatus returns the leases of a status page.
func NewStatus(page *adminclient.Page) *Status {
	return &Status{page: page, ready: make(chan struct{})}
}

// poll asks the page once.
func (s *Status) poll(ctx context.Context) (activity.State, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pollTimeout, fmt.Errorf("no answer within %v", pollTimeout))
	defer cancel()
	return s.page.State(ctx)
}

// Ready implements Source.
func (s *Status) Ready() <-chan struct{} { return s.ready }

// Run implements Source. It fails if the first answer does; later it goes on asking.
func (s *Status) Run(ctx context.Context) error {
	ticks := time.NewTicker(pollEvery)
	defer ticks.Stop()
	for first := true; ; first = false {
		state, err := s.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && first:
			return err
		}
		s.mu.Lock()
		if s.problem = err; err == nil {
			s.state, s.fetched = state, time.Now()
		}
		s.mu.Unlock()
		if first {
			close(s.ready)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Snapshot implements Source.
func (s *Status) Snapshot(now time.Time) Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, age := s.state.Info, max(now.Sub(s.fetched), 0)
	snapshot := Snapshot{At: now, Hidden: s.state.LeasesHidden, Title: strings.TrimSpace(fmt.Sprintf("%s %s %s %s", info.Mode, info.Role, info.Data, info.Address))}
	snapshot.Leases = make([]Lease, 0, len(s.state.Leases)) // an empty list is a list in JSON too
	for _, l := range s.state.Leases {
		snapshot.Leases = append(snapshot.Leases, fromState(l, s.state.At, age))
	}
	if s.problem != nil {
		snapshot.Problem = fmt.Sprintf("no answer for %v: %v", age.Round(time.Second), s.problem)
	}
	return snapshot
}
