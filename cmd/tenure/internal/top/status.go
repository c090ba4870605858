package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/activity"
)

const (
	// maxState bounds what is read from a status page.
	maxState = 64 << 20
	// pollEvery is how often the status page is asked, and pollTimeout bounds each answer.
	pollEvery   = 500 * time.Millisecond
	pollTimeout = 5 * time.Second
)

// Status is the status page of a store. It is a Source, and safe for concurrent use.
type Status struct {
	url    string
	client *http.Client
	ready  chan struct{}

	mu      sync.Mutex
	state   activity.State
	fetched time.Time // zero: never
	problem error
}

var _ Source = (*Status)(nil)

// NewStatus returns the status page at a URL, such as 127.0.0.1:8080 or http://127.0.0.1:8080. The error says how to write
// one.
func NewStatus(address string) (*Status, error) {
	const form = "write it like 127.0.0.1:8080 or http://127.0.0.1:8080"
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	page, err := url.Parse(address)
	if err != nil || page.Host == "" || page.Scheme != "http" && page.Scheme != "https" || page.User != nil {
		return nil, fmt.Errorf("%q is no address of a status page: %s", address, form)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true, IdleConnTimeout: time.Minute}
	return &Status{
		url: page.JoinPath("/api/state").String(), ready: make(chan struct{}),
		client: &http.Client{Timeout: pollTimeout, Transport: transport},
	}, nil
}

// State asks the page once.
func (s *Status) State(ctx context.Context) (activity.State, error) {
	var state activity.State
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return state, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return state, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 256))
		return state, fmt.Errorf("%s answers %s: %s", s.url, response.Status, strings.TrimSpace(string(text)))
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxState+1))
	if err != nil {
		return state, err
	}
	if len(content) > maxState {
		return state, fmt.Errorf("%s answers with more than %d bytes", s.url, maxState)
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return state, fmt.Errorf("%s does not answer like a status page: %w", s.url, err)
	}
	if state.At.IsZero() {
		return state, errors.New(s.url + " is no status page of a store")
	}
	return state, nil
}

// Ready implements Source.
func (s *Status) Ready() <-chan struct{} { return s.ready }

// Run implements Source. It fails if the first answer does; later it goes on asking.
func (s *Status) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	ticks := time.NewTicker(pollEvery)
	defer ticks.Stop()
	for first := true; ; first = false {
		state, err := s.State(ctx)
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
	for _, l := range s.state.Leases {
		snapshot.Leases = append(snapshot.Leases, fromState(l, s.state.At, age))
	}
	if s.problem != nil {
		snapshot.Problem = fmt.Sprintf("no answer for %v: %v", age.Round(time.Second), s.problem)
	}
	return snapshot
}
