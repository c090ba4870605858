package transport

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// exchange is one request that waits for its reply.
type exchange struct {
	ctx         context.Context
	request     Request
	correlation correlation

	done  chan struct{} // closed by the goroutine that took the exchange out of link.pending
	reply Reply         // set before, like err
	err   error

	// Guarded by link.mu.
	sent     bool // it may have reached the broker
	accepted bool // the broker has acknowledged it
}

// correlation is the correlation data of a request; deployed stores refuse another length.
type correlation [16]byte

// choose fills in correlation data that no other request has. It cannot be guessed, so only
// a peer that sees the request can answer it.
func (id *correlation) choose() {
	_, _ = rand.Read(id[:]) // never fails, says its documentation
}

func newExchange(ctx context.Context, request Request) *exchange {
	e := &exchange{ctx: ctx, request: request, done: make(chan struct{})}
	e.correlation.choose()
	return e
}

// end gives an exchange its result. Only the goroutine that took it out of link.pending may
// call it.
func (e *exchange) end(reply Reply, err error) {
	e.reply, e.err = reply, err
	close(e.done)
}

// queue is first in, first out, and reuses its memory.
type queue struct {
	exchanges []*exchange
	first     int
}

func (q *queue) push(e *exchange) {
	if q.first > len(q.exchanges)/2 {
		q.exchanges = slices.Delete(q.exchanges, 0, q.first)
		q.first = 0
	}
	q.exchanges = append(q.exchanges, e)
}

// pop returns nil if the queue is empty.
func (q *queue) pop() *exchange {
	if q.first == len(q.exchanges) {
		q.exchanges, q.first = q.exchanges[:0], 0
		return nil
	}
	e := q.exchanges[q.first]
	q.exchanges[q.first] = nil
	q.first++
	return e
}

// message is a PUBLISH that arrived, read by paho or by the fast path. Its slices may be
// overwritten after link.deliver returns.
type message struct {
	topic, correlation, payload []byte
	// User properties, empty where there is none.
	timestamp, status, statusMessage, store, instance []byte
}

// reply turns a status of 400 or more into an error. After 408 and 5xx it is not known
// whether the request was applied; after any other it was not. A reply without a status
// counts as a success.
func (m *message) reply(store, instance string) (Reply, error) {
	const timeout, serverError = 408, 500 // as in HTTP, like statusUnavailable
	status, err := strconv.Atoi(string(m.status))
	if err != nil || status < 400 {
		return Reply{Payload: bytes.Clone(m.payload), Timestamp: string(m.timestamp), Store: store, Instance: instance}, nil
	}
	rejected := &RejectedError{Code: status, Reason: string(m.statusMessage)}
	if status == timeout || status >= serverError {
		return Reply{}, unknown(rejected)
	}
	return Reply{}, rejected
}

// RoundTrip implements Conn.
func (c *mqttConn) RoundTrip(ctx context.Context, request Request) (Reply, error) {
	e := newExchange(ctx, request)
	l, err := c.post(e)
	if err != nil {
		return Reply{}, err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		if err := l.abandon(e, context.Cause(ctx)); err != nil {
			return Reply{}, err
		}
		<-e.done // the reply came at the same moment
	}
	return e.reply, e.err
}

// post adds an exchange to the queue of a connection, when there is one and its broker takes
// one more request [MQTT-4.9.0-2].
func (c *mqttConn) post(e *exchange) (*link, error) {
	for {
		if err := e.request.Binding.Err(); err != nil {
			return nil, err // no later connection can be the right one
		}
		l, err := c.awaitLink(e.ctx)
		if err != nil {
			return nil, notSent(err)
		}
		// Check again, because l may be the next connection. The channel of the lost one was
		// closed before that was ready, so this check misses nothing.
		if err := e.request.Binding.Err(); err != nil {
			return nil, err
		}
		switch {
		case l.slots.acquire(e.ctx, l.down, e.request.Urgent):
			if l.enqueue(e) {
				return l, nil
			}
			l.slots.free()
		case e.ctx.Err() != nil && !isClosed(l.down):
			return nil, notSent(fmt.Errorf("%w: as many requests are under way as the broker takes (Receive Maximum %d)",
				context.Cause(e.ctx), l.slots.size))
		}
	}
}

// awaitLink waits for a connection that is ready. The error begins with why there was none, if
// that is known.
func (c *mqttConn) awaitLink(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, ready, last, silent := c.link, c.ready, c.last, c.silent
		c.mu.Unlock()
		switch {
		case c.life.Err() != nil:
			return nil, context.Cause(c.life)
		case ctx.Err() != nil && last != nil:
			return nil, fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		case errors.Is(ctx.Err(), context.DeadlineExceeded) && silent != nil:
			return nil, fmt.Errorf("%w (%w)", silent, context.Cause(ctx))
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case isClosed(ready):
			return l, nil
		}
		select {
		case <-ready:
		case <-c.life.Done():
		case <-ctx.Done():
		}
	}
}
