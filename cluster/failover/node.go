//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	writeEvery = 20 * time.Millisecond
	leaseKey   = "failover/active"
	counterKey = "failover/counter"
)

// counter is what the protected key holds.
type counter struct {
	Node  string    `json:"node"`
	Token hlc.Token `json:"token"`
	Count int       `json:"count"`
}

// event is a line that a node writes to its standard output: a change of its phase, or a write.
type event struct {
	At    time.Time `json:"at"`
	Node  string    `json:"node"`
	Phase string    `json:"phase,omitempty"` // empty: a write
	Token hlc.Token `json:"token"`

	Outcome string        `json:"outcome,omitempty"`
	Version hlc.Timestamp `json:"version"`
	Count   int           `json:"count,omitempty"`
	Late    bool          `json:"late,omitempty"` // sent past the guard
}

// Outcomes of writes.
const (
	accepted       = "accepted"
	refusedByGuard = "refused by the guard"
	refusedByStore = "refused by the store"
	unknown        = "unknown"
)

// node is one node of the pair.
type node struct {
	settings
	client *transport.Client

	mu sync.Mutex
	to *json.Encoder
}

// runNode campaigns until ctx ends.
func runNode(ctx context.Context, s settings, input io.Reader, output io.Writer) error {
	ctx = untilClosed(ctx, input)
	logger := s.logger()
	client, err := transport.Dial(ctx, s.stores, transport.Options{
		ClientID:      s.name,
		ReconnectMax:  reconnectMax,
		ClientOptions: transport.ClientOptions{Logger: logger},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	n := &node{settings: s, client: client, to: json.NewEncoder(output)}
	elector, err := election.New(client, leaseKey, election.Options{
		TTL:    s.ttl,
		Lease:  lease.Options{Holder: s.name},
		Claim:  []string{counterKey},
		Logger: logger,
		Observer: func(t election.Transition) {
			n.write(event{At: t.At, Phase: t.Phase.String(), Token: t.Token})
		},
	})
	if err != nil {
		return err
	}
	if err := elector.Run(ctx, n.lead); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// reconnectMax is how long a client pauses at most while each store stands by.
const reconnectMax = 500 * time.Millisecond

func (n *node) write(e event) {
	e.Node = n.name
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.to.Encode(e) // fails when the director is gone; ctx ends then too
}

// lead counts up the protected key until its context ends.
func (n *node) lead(ctx context.Context, term *election.Term) error {
	token, err := term.Token()
	if err != nil {
		return err
	}
	count, err := n.readCount(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for {
		next := count + 1
		value, err := json.Marshal(counter{Node: n.name, Token: token, Count: next})
		if err != nil {
			return err
		}
		version, err := term.Guard().Set(ctx, counterKey, value)
		n.report(event{Token: token, Version: version, Count: next}, err)
		if err == nil {
			count++
		} else if ctx.Err() == nil {
			// Only the store knows whether the write was applied.
			if count, err = n.readCount(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), lease.ErrDeadlinePassed) {
				n.writeLate(token, value, next)
			}
			return nil
		case <-tick.C:
		}
	}
}

// writeLate acts as a node that was stopped between its last check of the lease and its
// write: it sends the write past the guard, with the token that it had.
func (n *node) writeLate(token hlc.Token, value []byte, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), n.ttl)
	defer cancel()
	for {
		version, err := n.client.Set(ctx, counterKey, value, transport.SetOptions{FencingToken: token})
		if err != nil && ctx.Err() == nil && (errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)) {
			continue // its connection ended with the store
		}
		n.report(event{Token: token, Version: version, Count: count, Late: true}, err)
		return
	}
}

// readCount reads the protected key, over as many connections as that needs.
func (n *node) readCount(ctx context.Context) (int, error) {
	for {
		entry, err := n.client.Get(ctx, counterKey)
		if err != nil && ctx.Err() == nil && errors.Is(err, transport.ErrOutcomeUnknown) {
			continue
		}
		if err != nil || len(entry.Value) == 0 { // a new key was claimed empty
			return 0, err
		}
		var c counter
		err = json.Unmarshal(entry.Value, &c)
		return c.Count, err
	}
}

// report tells the director how a write went.
func (n *node) report(e event, err error) {
	e.At = time.Now()
	switch {
	case err == nil:
		e.Outcome = accepted
	case errors.Is(err, transport.ErrFencingTokenLower):
		e.Outcome = refusedByStore
	case errors.Is(err, transport.ErrOutcomeUnknown):
		e.Outcome = unknown
	default:
		e.Outcome = refusedByGuard
	}
	n.write(e)
}
