//go:build unix || windows

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// writeEvery is how often the active node writes.
const writeEvery = 20 * time.Millisecond

// commandResign is a line of a node's standard input: the node hands over if it leads.
const commandResign = "resign"

// The keys of a run: the lease for which the pair campaigns, and the key that its token protects. That holds
// the token of its latest write.
func leaseKey(run string) string     { return "failover/" + run + "/active" }
func protectedKey(run string) string { return "failover/" + run + "/protected" }

// node is one node of the pair: it campaigns, and writes while it leads.
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
	client, err := transport.Dial(ctx, s.broker, transport.Options{ClientID: s.node + "-" + s.run})
	if err != nil {
		return err
	}
	defer client.Close()
	n := &node{settings: s, client: client, events: json.NewEncoder(os.Stdout)}
	elector, err := election.New(client, leaseKey(s.run), election.Options{
		TTL:   s.ttl,
		Lease: lease.Options{Holder: s.node, InstantFailover: s.instant},
		Claim: []string{protectedKey(s.run)},
		Observer: func(status election.Status) {
			n.write(event{At: status.Since, Phase: status.Phase, Token: status.Token})
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

// lead writes the protected key until its context ends.
func (n *node) lead(ctx context.Context, term *election.Term) error {
	token, err := term.Token()
	if err != nil {
		return err
	}
	set := func(ctx context.Context) {
		version, err := term.Guard().Set(ctx, protectedKey(n.run), []byte(token.String()))
		n.report(event{Token: token, Version: version}, err)
	}
	for set(ctx); sleep.For(ctx, writeEvery); set(ctx) {
	}
	if errors.Is(context.Cause(ctx), lease.ErrDeadlinePassed) {
		// This node lost its lease. Show what stops its late writes: first the guard, and then,
		// for a write that had passed the guard, the store.
		set(context.WithoutCancel(ctx))
		n.writeLate(token)
	}
	return nil
}

// writeLate acts as a node that was stopped between its last check of the lease and its write: it sends
// the write past the guard, with the token that it had. Only the store can refuse it now.
func (n *node) writeLate(token hlc.Token) {
	ctx, cancel := context.WithTimeout(context.Background(), n.ttl)
	defer cancel()
	for {
		version, err := n.client.Set(ctx, protectedKey(n.run), []byte(token.String()),
			transport.SetOptions{FencingToken: token})
		unanswered := errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)
		if !unanswered || ctx.Err() != nil { // else its connection ended with the store
			n.report(event{Token: token, Version: version, Late: true}, err)
			return
		}
	}
}

// report tells the director how a write went.
func (n *node) report(e event, err error) {
	e.At, e.Stale = time.Now(), errors.Is(err, transport.ErrFencingTokenLower)
	if err != nil {
		e.Error = err.Error()
	}
	n.write(e)
}

// write writes an event, from any goroutine.
func (n *node) write(e event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.events.Encode(e) // fails when the director is gone; the node ends then too
}
