package pair

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// WriteEvery is how often the active node counts.
const WriteEvery = 20 * time.Millisecond

// CommandResign is a line of a node's standard input: the node hands over if it leads.
const CommandResign = "resign"

// Options say what a node does.
type Options struct {
	// Node is the name of the node in its pair.
	Node string
	// Run distinguishes the keys and the client ids of pairs that share a store.
	Run string
	// Stores is the address of the store, or several with commas between them.
	Stores string
	// WebSocket is for stores at addresses with ws or wss, like transport.Options.WebSocket.
	WebSocket func(ctx context.Context, conn net.Conn, server *url.URL) (net.Conn, error)
	// TTL is how long the lease of a dead node lasts.
	TTL time.Duration
	// InstantFailover lets the node's connection release the lease when it is lost.
	InstantFailover bool
	// Control makes the node write each count to ControlKey too, as a program without fencing
	// would.
	Control bool
	// ReconnectMax is how long a client pauses at most before it connects again; 0 means the
	// default of transport.Options.
	ReconnectMax time.Duration
	// Logger gets what the node logs. It must not be nil.
	Logger *slog.Logger
}

// node is one node of the pair: it campaigns, and counts while it leads.
type node struct {
	Options
	client *transport.Client
	events *eventWriter
}

// RunNode campaigns until ctx or commands end, and writes events. Then it returns nil, or the
// error because of which it ended before.
func RunNode(ctx context.Context, o Options, commands io.Reader, events io.Writer) error {
	var running atomic.Pointer[election.Elector]
	ctx, stop := UntilClosed(ctx, commands, func(line string) {
		if elector := running.Load(); elector != nil && line == CommandResign {
			elector.Resign()
		}
	})
	defer stop()
	client, err := transport.Dial(ctx, o.Stores, transport.Options{
		ClientID:      o.Node + "-" + o.Run,
		ReconnectMax:  o.ReconnectMax,
		WebSocket:     o.WebSocket,
		ClientOptions: transport.ClientOptions{Logger: o.Logger},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	n := &node{Options: o, client: client, events: newEventWriter(o.Node, events)}
	elector, err := election.New(client, LeaseKey(o.Run), election.Options{
		TTL:   o.TTL,
		Lease: lease.Options{Holder: o.Node, InstantFailover: o.InstantFailover},
		Claim: []string{CounterKey(o.Run)},
		Observer: func(s election.Status) {
			n.events.write(Event{At: s.Since, Kind: KindPhase, Phase: string(s.Phase), Token: s.Token, Cause: text(s.Cause)})
		},
		Logger: o.Logger,
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

// UntilClosed returns a context that ends with ctx, with stop, and when input ends: then the
// director is gone. It calls command with each line of input, from another goroutine, which ends
// with input.
func UntilClosed(ctx context.Context, input io.Reader, command func(line string)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process: nothing can interrupt a read of standard input
		for lines := bufio.NewScanner(input); lines.Scan(); {
			command(lines.Text())
		}
		cancel()
	}()
	return ctx, cancel
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
	tick := time.NewTicker(WriteEvery)
	defer tick.Stop()
	for {
		next := count + 1
		value, err := json.Marshal(Counter{Node: n.Node, Token: token, Count: next})
		if err != nil {
			return err
		}
		version, err := term.Guard().Set(ctx, CounterKey(n.Run), value)
		n.report(Event{Token: token, Version: version, Count: next}, err)
		if n.Control {
			_, _ = n.writeControl(ctx, value) // the director sees the outcome in the store
		}
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
				version, err := term.Guard().Set(context.WithoutCancel(ctx), CounterKey(n.Run), value)
				n.report(Event{Token: token, Version: version, Count: next}, err)
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
	ctx, cancel := context.WithTimeout(context.Background(), n.TTL)
	defer cancel()
	if n.Control {
		version, err := n.writeControl(ctx, value)
		n.report(Event{Token: token, Version: version, Count: count, Control: true}, err)
	}
	for {
		version, err := n.client.Set(ctx, CounterKey(n.Run), value, transport.SetOptions{FencingToken: token})
		if err != nil && ctx.Err() == nil && (errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)) {
			continue // its connection ended with the store
		}
		n.report(Event{Token: token, Version: version, Count: count, Late: true}, err)
		return
	}
}

// writeControl writes the value of the protected key to the control, as a program without
// fencing would.
func (n *node) writeControl(ctx context.Context, value []byte) (hlc.Timestamp, error) {
	return n.client.Set(ctx, ControlKey(n.Run), value, transport.SetOptions{})
}

// readCount reads the protected key, over as many connections as that needs.
func (n *node) readCount(ctx context.Context) (int, error) {
	for {
		entry, err := n.client.Get(ctx, CounterKey(n.Run))
		if err != nil && ctx.Err() == nil && errors.Is(err, transport.ErrOutcomeUnknown) {
			continue
		}
		if err != nil || len(entry.Value) == 0 { // a new key was claimed empty
			return 0, err
		}
		var c Counter
		err = json.Unmarshal(entry.Value, &c)
		return c.Count, err
	}
}

// report tells the director how a write went.
func (n *node) report(e Event, err error) {
	e.At, e.Kind, e.Cause = time.Now(), KindWrite, text(err)
	switch {
	case err == nil:
		e.Outcome = Accepted
	case errors.Is(err, transport.ErrFencingTokenLower):
		e.Outcome = RefusedByStore
	case errors.Is(err, transport.ErrOutcomeUnknown):
		e.Outcome = Unknown
	default:
		e.Outcome = RefusedByGuard
	}
	n.events.write(e)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
