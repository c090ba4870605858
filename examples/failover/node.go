//go:build unix || windows

package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// writeEvery is how often the active node counts.
const writeEvery = 20 * time.Millisecond

// commandResign is a line of a node's standard input: the node hands over if it leads.
const commandResign = "resign"

// counter is what the protected key holds, in JSON.
type counter struct {
	Node  string    `json:"node"`
	Token hlc.Token `json:"token"`
	Count int       `json:"count"`
}

// The keys of a run: the lease for which the pair campaigns, the key that its token protects, and the
// control, which nothing protects.
func leaseKey(run string) string   { return "failover/" + run + "/active" }
func counterKey(run string) string { return "failover/" + run + "/counter" }
func controlKey(run string) string { return "failover/" + run + "/control" }

// Outcomes of writes.
const (
	accepted       = "accepted"
	refusedByGuard = "refused by the guard"
	refusedByStore = "refused by the store"
	unknown        = "unknown"
)

// node is one node of the pair: it campaigns, and counts while it leads.
type node struct {
	settings
	client *transport.Client

	mu     sync.Mutex // guards events
	events *json.Encoder
}

// runNode campaigns until ctx or standard input ends, and writes events to standard output. Then it
// returns nil, or the error because of which it ended before.
func runNode(ctx context.Context, s settings) error {
	var running atomic.Pointer[election.Elector]
	ctx, stop := untilClosed(ctx, func(line string) {
		if elector := running.Load(); elector != nil && line == commandResign {
			elector.Resign()
		}
	})
	defer stop()
	client, err := transport.Dial(ctx, s.broker, transport.Options{
		ClientID:      s.node + "-" + s.run,
		WebSocket:     tenurews.Upgrade,
		ClientOptions: transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	n := &node{settings: s, client: client, events: json.NewEncoder(os.Stdout)}
	elector, err := election.New(client, leaseKey(s.run), election.Options{
		TTL:   s.ttl,
		Lease: lease.Options{Holder: s.node, InstantFailover: s.instant},
		Claim: []string{counterKey(s.run)},
		Observer: func(status election.Status) {
			n.write(event{At: status.Since, Phase: string(status.Phase), Token: status.Token})
		},
	})
	if err != nil {
		return err
	}
	running.Store(elector)
	if err := elector.Run(ctx, n.lead); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
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
		value, err := json.Marshal(counter{Node: n.node, Token: token, Count: next})
		if err != nil {
			return err
		}
		version, err := term.Guard().Set(ctx, counterKey(n.run), value)
		n.report(event{Token: token, Version: version, Count: next}, err)
		// The director sees the outcome in the store.
		_, _ = n.client.Set(ctx, controlKey(n.run), value, transport.SetOptions{})
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
				// This node lost its lease. Show what stops its late writes: first the guard …
				version, err := term.Guard().Set(context.WithoutCancel(ctx), counterKey(n.run), value)
				n.report(event{Token: token, Version: version, Count: next}, err)
				// … then, for a write that had passed the guard, the store.
				n.writeLate(token, value, next)
			}
			return nil
		case <-tick.C:
		}
	}
}

// writeLate acts as a node that was stopped between its last check of the lease and its
// write: it sends the write past the guard, with the token that it had. Only the store can
// refuse it now. Nothing refuses the write to the control.
func (n *node) writeLate(token hlc.Token, value []byte, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), n.ttl)
	defer cancel()
	version, err := n.client.Set(ctx, controlKey(n.run), value, transport.SetOptions{})
	n.report(event{Token: token, Version: version, Count: count, Control: true}, err)
	for {
		version, err := n.client.Set(ctx, counterKey(n.run), value, transport.SetOptions{FencingToken: token})
		unanswered := errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)
		if unanswered && ctx.Err() == nil {
			continue // its connection ended with the store
		}
		n.report(event{Token: token, Version: version, Count: count, Late: true}, err)
		return
	}
}

// readCount reads the protected key, over as many connections as that needs.
func (n *node) readCount(ctx context.Context) (int, error) {
	for {
		entry, err := n.client.Get(ctx, counterKey(n.run))
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

// write writes an event, from any goroutine.
func (n *node) write(e event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.events.Encode(e) // fails when the director is gone; the node ends then too
}
