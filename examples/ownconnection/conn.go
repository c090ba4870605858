package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// The topics of the protocol (docs/protocol.md §1.2 and §5.1).
const (
	invokeTopic  = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	notifyPrefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/"
	notifyInfix  = "/command/notify/"
)

// A Message is an MQTT 5 PUBLISH, in the terms that all MQTT libraries have.
type Message struct {
	Topic, ResponseTopic string
	CorrelationData      []byte
	ContentType          string
	Expiry               uint32            // in seconds
	Properties           map[string]string // user properties
	Payload              []byte
}

// A Conn is a transport.Conn on an MQTT connection that belongs to the program. It knows no MQTT
// library: the program tells it of its connections with Connected and Disconnected, and
// gives it what arrives with Received. It is safe for concurrent use.
type Conn struct {
	clientID string
	response string // the topic of replies
	notified string // the prefix of the topics of notifications

	changes sync.Mutex // keeps events in order; held while one is handed over, which does not block

	mu      sync.Mutex
	events  transport.Events
	started bool
	line    *line         // the present connection; nil while there is none
	ready   chan struct{} // closed while line is set
	closed  chan struct{} // closed by Close
}

// A line is one connection.
type line struct {
	send    func(context.Context, Message) error
	lost    chan struct{}             // closed when the connection is lost
	pending map[string]chan<- Message // by correlation data; guarded by Conn.mu
}

var _ transport.Conn = (*Conn)(nil)

// NewConn returns a Conn of a client with this MQTT client id. It has no connection yet.
func NewConn(clientID string) *Conn {
	return &Conn{
		clientID: clientID,
		response: "clients/" + clientID + "/services/statestore/_any_/command/invoke/response",
		notified: notifyPrefix + strings.ToUpper(hex.EncodeToString([]byte(clientID))) + notifyInfix,
		ready:    make(chan struct{}),
		closed:   make(chan struct{}),
	}
}

// Filters returns the topic filters to which the program subscribes, with QoS 1, before Connected.
func (c *Conn) Filters() []string { return []string{c.response, c.notified + "+"} }

// Connected says that there is a connection, and that its broker has granted Filters. send
// publishes with QoS 1 over this connection, and over no later one, and returns when the
// connection is lost. Its error matches transport.ErrNotSent, transport.ErrNoStore or
// *transport.RejectedError if the store did not get the message; after any other error that is
// not known.
func (c *Conn) Connected(send func(context.Context, Message) error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	if up := c.state(); up.connected || c.isClosed() {
		return
	} else if up.started {
		up.events.Up() // before any request can be sent
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.line = &line{send: send, lost: make(chan struct{}), pending: make(map[string]chan<- Message)}
	close(c.ready)
}

// Disconnected says that the connection is lost. Requests under way fail at once.
func (c *Conn) Disconnected() {
	c.changes.Lock()
	defer c.changes.Unlock()
	was := c.state()
	if !was.connected {
		return
	}
	c.mu.Lock()
	close(c.line.lost)
	c.line, c.ready = nil, make(chan struct{})
	c.mu.Unlock()
	if was.started {
		was.events.Down(nil)
	}
}

type state struct {
	events             transport.Events
	started, connected bool
}

func (c *Conn) state() state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return state{c.events, c.started, c.line != nil}
}

// Received takes a message that arrived. It reports false for one that is none of the store's.
func (c *Conn) Received(m Message) bool {
	if m.Topic == c.response {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.line != nil {
			if reply, waits := c.line.pending[string(m.CorrelationData)]; waits {
				delete(c.line.pending, string(m.CorrelationData))
				reply <- m // it has room for one
			}
		}
		return true
	}
	name, ours := strings.CutPrefix(m.Topic, c.notified)
	if !ours {
		return false
	}
	if key, err := hex.DecodeString(name); err == nil {
		if to := c.state(); to.started {
			to.events.Notify(transport.Notification{Key: string(key), Payload: m.Payload, Timestamp: m.Properties["__ts"], Store: m.Properties["tenure-store"]})
		}
	}
	return true
}

// ClientID implements transport.Conn.
func (c *Conn) ClientID() string { return c.clientID }

// Start implements transport.Conn.
func (c *Conn) Start(events transport.Events) {
	c.changes.Lock()
	defer c.changes.Unlock()
	c.mu.Lock()
	c.events, c.started = events, true
	c.mu.Unlock()
	if c.state().connected {
		events.Up()
	}
}

// Probe implements transport.Conn. It does nothing: the program knows its connection better.
func (c *Conn) Probe(time.Duration) {}

// SetWill implements transport.Conn. The Will belongs to the program's connection.
func (c *Conn) SetWill(context.Context, transport.Request) (<-chan struct{}, time.Duration, error) {
	return nil, 0, transport.ErrNoWill
}

// RoundTrip implements transport.Conn.
func (c *Conn) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	var correlation [16]byte // deployed stores refuse another length
	_, _ = rand.Read(correlation[:])
	answer := make(chan Message, 1)
	l, err := c.post(ctx, request.Binding, string(correlation[:]), answer)
	if err != nil {
		return transport.Reply{}, err
	}
	defer c.forget(l, string(correlation[:]))
	if err := l.send(ctx, c.message(ctx, request, correlation[:])); err != nil {
		select {
		case m := <-answer: // the store has answered all the same
			return reply(m)
		default:
		}
		var rejected *transport.RejectedError
		if errors.Is(err, transport.ErrNotSent) || errors.Is(err, transport.ErrNoStore) || errors.As(err, &rejected) {
			return transport.Reply{}, err
		}
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
	}
	select {
	case m := <-answer:
		return reply(m)
	case <-l.lost:
		return transport.Reply{}, fmt.Errorf("%w: the connection was lost", transport.ErrOutcomeUnknown)
	case <-c.closed:
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, transport.ErrClosed)
	case <-ctx.Done():
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// post waits for a connection, and notes that a request over it waits for an answer.
func (c *Conn) post(ctx context.Context, binding transport.Binding, correlation string, answer chan<- Message) (*line, error) {
	for {
		if err := binding.Err(); err != nil {
			return nil, err
		}
		c.mu.Lock()
		l, ready := c.line, c.ready
		if l != nil && !c.isClosed() {
			l.pending[correlation] = answer
		}
		c.mu.Unlock()
		if l != nil {
			// Again: this may be the next connection, and the channel of the lost one was closed before.
			if err := binding.Err(); err != nil {
				c.forget(l, correlation)
				return nil, err
			}
		}
		select {
		case <-c.closed:
			return nil, fmt.Errorf("%w: %w", transport.ErrNotSent, transport.ErrClosed)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", transport.ErrNotSent, context.Cause(ctx))
		case <-ready:
			if l != nil {
				return l, nil
			}
		}
	}
}

func (c *Conn) forget(l *line, correlation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(l.pending, correlation)
}

// message is the PUBLISH of a request (docs/protocol.md §1.2).
func (c *Conn) message(ctx context.Context, request transport.Request, correlation []byte) Message {
	properties := map[string]string{"__srcId": c.clientID, "__protVer": "1.0", "$partition": c.clientID}
	for name, value := range map[string]string{"__ts": request.Timestamp, "__ft": request.FencingToken, "tenure-store": request.Binding.Store} {
		if value != "" {
			properties[name] = value
		}
	}
	if request.Persist {
		properties["aio-persistence"] = "true"
	}
	m := Message{
		Topic: invokeTopic, ResponseTopic: c.response, CorrelationData: correlation,
		ContentType: "application/octet-stream", Properties: properties, Payload: request.Payload,
	}
	if deadline, ok := ctx.Deadline(); ok { // so that the store does not apply it later
		m.Expiry = uint32(min(max(math.Ceil(time.Until(deadline).Seconds()), 1), math.MaxUint32))
	}
	return m
}

// reply reads the answer of a store (docs/protocol.md §1.3).
func reply(m Message) (transport.Reply, error) {
	if status, err := strconv.Atoi(m.Properties["__stat"]); err == nil && status >= 400 {
		var rejected error = &transport.RejectedError{Code: status, Reason: m.Properties["__stMsg"]}
		if status == 408 || status >= 500 {
			rejected = fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, rejected)
		}
		return transport.Reply{}, rejected
	}
	return transport.Reply{Payload: m.Payload, Timestamp: m.Properties["__ts"], Store: m.Properties["tenure-store"], Instance: m.Properties["tenure-instance"]}, nil
}

// Close implements transport.Conn. It ends the requests under way, and leaves the program's
// connection as it is.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed() {
		close(c.closed)
	}
	return nil
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}
