//go:build unix || windows

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	writeEvery = 20 * time.Millisecond
	// commandResign is what the director writes to a node's standard input.
	commandResign = "resign"
)

// counter is what the protected key holds.
type counter struct {
	Node  string    `json:"node"`
	Token hlc.Token `json:"token"`
	Count int       `json:"count"`
}

func leaseKey(run string) string   { return "failover/" + run + "/active" }
func counterKey(run string) string { return "failover/" + run + "/counter" }
func controlKey(run string) string { return "failover/" + run + "/control" } // written without a token

// node is one node of the pair: it campaigns, and counts while it leads.
type node struct {
	settings
	client *transport.Client
	events *eventWriter
}

// runNode campaigns until ctx or the commands end.
func runNode(ctx context.Context, s settings, commands io.Reader, events io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	logger := slog.New(slog.DiscardHandler)
	if s.verbose {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", s.node)
	}
	client, err := transport.Dial(ctx, s.broker, transport.Options{
		ClientID:      s.node + "-" + s.run,
		ClientOptions: transport.ClientOptions{Logger: logger},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	n := &node{settings: s, client: client, events: &eventWriter{node: s.node, to: json.NewEncoder(events)}}
	elector, err := election.New(client, leaseKey(s.run), election.Options{
		TTL:   s.ttl,
		Lease: lease.Options{Holder: s.node, InstantFailover: s.instant},
		Claim: []string{counterKey(s.run)},
		Observer: func(t election.Transition) {
			n.events.write(event{At: t.At, Kind: kindPhase, Phase: t.Phase.String(), Token: t.Token, Cause: text(t.Cause)})
		},
		Logger: logger,
	})
	if err != nil {
		return err
	}
	go func() { // ends with the process: nothing can interrupt a read of standard input
		lines := bufio.NewScanner(commands)
		for lines.Scan() {
			if lines.Text() == commandResign {
				elector.Resign()
			}
		}
		stop() // the director is gone
	}()
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
		_, _ = n.writeControl(ctx, value) // the director sees the outcome in the store
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
// refuse it now.
func (n *node) writeLate(token hlc.Token, value []byte, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), n.ttl)
	defer cancel()
	version, err := n.writeControl(ctx, value)
	n.report(event{Token: token, Version: version, Count: count, Control: true}, err)
	version, err = n.client.Set(ctx, counterKey(n.run), value, transport.SetOptions{FencingToken: token})
	n.report(event{Token: token, Version: version, Count: count, Late: true}, err)
}

// writeControl writes the value of the protected key to the control, as a program without
// fencing would.
func (n *node) writeControl(ctx context.Context, value []byte) (hlc.Timestamp, error) {
	return n.client.Set(ctx, controlKey(n.run), value, transport.SetOptions{})
}

func (n *node) readCount(ctx context.Context) (int, error) {
	entry, err := n.client.Get(ctx, counterKey(n.run))
	if err != nil || len(entry.Value) == 0 { // a new key was claimed empty
		return 0, err
	}
	var c counter
	err = json.Unmarshal(entry.Value, &c)
	return c.Count, err
}

// report tells the director how a write went.
func (n *node) report(e event, err error) {
	e.At, e.Kind, e.Cause = time.Now(), kindWrite, text(err)
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
	n.events.write(e)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Kinds of events, and outcomes of writes.
const (
	kindPhase = "phase"
	kindWrite = "write"
	kindExit  = "exit" // sent by the director's process

	accepted       = "accepted"
	refusedByGuard = "refused by the guard"
	refusedByStore = "refused by the store"
	unknown        = "unknown"
)

// event is a line that a node writes to its standard output.
type event struct {
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	Kind string    `json:"kind"`

	Phase string    `json:"phase,omitempty"`
	Token hlc.Token `json:"token"`
	Cause string    `json:"cause,omitempty"`

	Outcome string        `json:"outcome,omitempty"`
	Version hlc.Timestamp `json:"version"`
	Count   int           `json:"count,omitempty"`
	Late    bool          `json:"late,omitempty"`    // sent past the guard
	Control bool          `json:"control,omitempty"` // to the control
}

// eventWriter writes events, from any goroutine.
type eventWriter struct {
	node string
	mu   sync.Mutex
	to   *json.Encoder
}

func (w *eventWriter) write(e event) {
	e.Node = w.node
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.to.Encode(e) // fails when the director is gone; the commands end then too
}
