package transporttest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Fault is what the wire does to one request and its reply. The zero Fault does
// nothing. A request that is held back is applied when its time comes, even if
// its sender has given up and the connection is gone: so do packets that a
// broker or a network kept.
type Fault struct {
	// LoseRequest and LoseReply drop the message; the sender waits in vain.
	LoseRequest, LoseReply bool
	// Repeat delivers the request twice, as a redelivery does: with the same
	// correlation data. The reply to the second is dropped.
	Repeat bool
	// HoldRequest and HoldReply delay it.
	HoldRequest, HoldReply time.Duration
}

var errCut = errors.New("the connection was cut")

// Conn is a client's connection to a Store. It implements transport.Conn.
type Conn struct {
	store    *Store
	clientID string

	queued chan struct{} // signals that queue is not empty

	mu       sync.Mutex
	events   transport.Events
	started  bool
	line     chan struct{} // closed when the present connection is cut; nil while cut
	restored chan struct{} // closed when line is set
	ended    error
	fault    func(transport.Request) Fault
	queue    []statestore.Notification
	silent   bool
	requests uint64 // so far

	finished chan struct{} // closed by Close
	pump     sync.WaitGroup
}

var _ transport.Conn = (*Conn)(nil)

func newConn(store *Store, clientID string) *Conn {
	c := &Conn{
		store:    store,
		clientID: clientID,
		queued:   make(chan struct{}, 1),
		line:     make(chan struct{}),
		restored: make(chan struct{}),
		finished: make(chan struct{}),
	}
	close(c.restored)
	return c
}

// ClientID implements transport.Conn.
func (c *Conn) ClientID() string { return c.clientID }

// Start implements transport.Conn.
func (c *Conn) Start(events transport.Events) {
	c.mu.Lock()
	c.events, c.started = events, true
	up := c.line != nil
	c.mu.Unlock()
	if up {
		events.Up()
	}
	c.pump.Go(c.deliver)
}

// SetFault lets decide choose the fate of each request from now on; nil ends
// all faults. It is called from the goroutine that makes the request.
func (c *Conn) SetFault(decide func(transport.Request) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = decide
}

// Silence drops all notifications while on is true, as an unreliable broker may.
func (c *Conn) Silence(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = on
}

// Cut ends the connection: requests under way fail as unknown, the store
// forgets what the client watched, and nothing passes until Restore.
func (c *Conn) Cut() {
	c.mu.Lock()
	if c.line == nil || c.ended != nil {
		c.mu.Unlock()
		return
	}
	close(c.line)
	c.line, c.restored, c.queue = nil, make(chan struct{}), nil
	events, started := c.events, c.started
	c.mu.Unlock()
	c.store.engine.Forget(c.clientID)
	if started {
		events.Down()
	}
}

// Restore connects again after Cut.
func (c *Conn) Restore() {
	c.mu.Lock()
	if c.line != nil || c.ended != nil {
		c.mu.Unlock()
		return
	}
	c.line = make(chan struct{})
	close(c.restored)
	events, started := c.events, c.started
	c.mu.Unlock()
	if started {
		events.Up()
	}
}

// Close implements transport.Conn.
func (c *Conn) Close() error {
	c.end(transport.ErrClosed)
	c.pump.Wait()
	return nil
}

// end makes cause the end of the connection, for good, unless it had ended
// before.
func (c *Conn) end(cause error) {
	c.Cut()
	c.store.engine.EndSession(c.clientID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	c.ended = cause
	close(c.finished)
}

// RoundTrip implements transport.Conn.
func (c *Conn) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	line, decide, err := c.awaitLine(ctx)
	if err != nil {
		return transport.Reply{}, err
	}
	var fault Fault
	if decide != nil {
		fault = decide(request)
	}
	arrived := make(chan transport.Reply, 1)
	if fault.HoldRequest > 0 {
		request.Payload = append([]byte(nil), request.Payload...) // it may outlive the call
		c.store.tasks.Go(func() {
			time.Sleep(fault.HoldRequest)
			c.arrive(request, fault, arrived)
		})
	} else {
		c.arrive(request, fault, arrived)
	}
	select {
	case reply := <-arrived:
		return reply, nil
	case <-line:
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, errCut)
	case <-ctx.Done():
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// arrive is what happens when a request has reached the store's end of the wire.
func (c *Conn) arrive(request transport.Request, fault Fault, arrived chan<- transport.Reply) {
	if fault.LoseRequest {
		return
	}
	correlation := c.correlation()
	reply := c.apply(request, correlation)
	if fault.Repeat {
		c.apply(request, correlation)
	}
	switch {
	case fault.LoseReply:
	case fault.HoldReply > 0:
		c.store.tasks.Go(func() {
			time.Sleep(fault.HoldReply)
			arrived <- reply
		})
	default:
		arrived <- reply
	}
}

// correlation returns the correlation data of the next request.
func (c *Conn) correlation() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	return binary.BigEndian.AppendUint64(make([]byte, 8), c.requests)
}

func (c *Conn) apply(request transport.Request, correlation []byte) transport.Reply {
	command := statestore.Parse(statestore.Request{
		Client:       c.clientID,
		Payload:      request.Payload,
		Correlation:  correlation,
		Timestamp:    property(request.Timestamp),
		FencingToken: property(request.FencingToken),
	})
	dialect, allow := c.store.rules()
	if allow != nil && !allow(c.clientID, command.Verb, command.Key) {
		command = command.Deny()
	}
	reply := c.store.engine.Apply(command)
	result := transport.Reply{Payload: reply.Append(nil, dialect)}
	if !reply.Version.IsZero() {
		result.Timestamp = reply.Version.String()
	}
	return result
}

func property(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func (c *Conn) awaitLine(ctx context.Context) (line chan struct{}, decide func(transport.Request) Fault, err error) {
	for {
		c.mu.Lock()
		line, restored, ended, decide := c.line, c.restored, c.ended, c.fault
		c.mu.Unlock()
		switch {
		case ended != nil:
			return nil, nil, fmt.Errorf("%w: %w", transport.ErrNotSent, ended)
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("%w: %w", transport.ErrNotSent, context.Cause(ctx))
		case line != nil:
			return line, decide, nil
		}
		select {
		case <-restored:
		case <-c.finished:
		case <-ctx.Done():
		}
	}
}

func (c *Conn) enqueue(notification statestore.Notification) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line == nil || c.silent {
		return
	}
	c.queue = append(c.queue, notification)
	select {
	case c.queued <- struct{}{}:
	default:
	}
}

// deliver hands notifications to the client, in order, until Close.
func (c *Conn) deliver() {
	for {
		select {
		case <-c.finished:
			return
		case <-c.queued:
		}
		c.mu.Lock()
		queue, events := c.queue, c.events
		c.queue = nil
		c.mu.Unlock()
		dialect, _ := c.store.rules()
		for _, notification := range queue {
			events.Notify(transport.Notification{
				Key:       notification.Key,
				Payload:   notification.Append(nil, dialect),
				Timestamp: notification.Version.String(),
			})
		}
	}
}
