package transporttest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// What travels over a Conn.
type (
	Request      = storeconn.Request
	Reply        = storeconn.Reply
	Notification = storeconn.Notification
)

// Fault is what happens to one request and its reply. The zero Fault does nothing. The fields
// can be combined: a request can be held for minutes, be applied, and have its reply lost.
//
// A held request reaches the store even if its sender has given up and the connection is gone,
// like a packet that a broker kept. A reply arrives over the connection of its request or not at
// all. Messages that are held for different times overtake each other.
type Fault struct {
	// LoseRequest and LoseReply drop the message; the sender gets no reply.
	LoseRequest, LoseReply bool
	// NoStore makes the broker answer that there is no store; the request is not applied.
	NoStore bool
	// Cut cuts the connection, as Conn.Cut does, after the store has applied the request and before it
	// replies; with LoseRequest, before the store gets it. The sender sees no difference.
	Cut bool
	// Repeat delivers the request twice, like a redelivery: with the same correlation
	// data, and only while the client's session lasts. The second reply is dropped.
	// RepeatAfter is the time between the two.
	Repeat      bool
	RepeatAfter time.Duration
	// HoldRequest and HoldReply delay the message.
	HoldRequest, HoldReply time.Duration
}

// NotificationFault is what happens to one notification. The zero NotificationFault does
// nothing.
type NotificationFault struct {
	// Lose drops the notification.
	Lose bool
	// Repeat delivers the notification twice, the second time after RepeatAfter.
	Repeat      bool
	RepeatAfter time.Duration
	// Hold delays the notification, so that later ones overtake it. It is lost if the
	// connection is cut meanwhile.
	Hold time.Duration
}

var errCut = errors.New("the connection was cut")

// Conn is a client's connection to a Store. It implements storeconn.Conn.
type Conn struct {
	store    *Store
	clientID string

	queued chan struct{} // signals that queue is not empty

	life     context.Context // ends, with the reason, once there will be no more connections
	finish   context.CancelCauseFunc
	pump     sync.WaitGroup
	requests atomic.Uint64 // so far

	mu       sync.Mutex
	events   storeconn.Events
	line     chan struct{} // closed when the present connection is cut; nil while cut
	restored chan struct{} // closed when line is set
	fault    func(Request) Fault
	hint     func(Notification) NotificationFault
	queue    []notice
	silent   bool
	will     []byte        // of the present connection; nil if it has none
	frozen   chan struct{} // the connection that Freeze made half-open, if any

	ignoreWills bool
	wanted      bool // Restore was called while the store was down
}

var _ storeconn.Conn = (*Conn)(nil)

func newConn(store *Store, clientID string) *Conn {
	c := &Conn{
		store:    store,
		clientID: clientID,
		queued:   make(chan struct{}, 1),
		line:     make(chan struct{}),
		restored: make(chan struct{}),
		events:   storeconn.Events{Up: func() {}, Down: func(error) {}, Ended: func(error) {}}, // until Start
	}
	c.life, c.finish = context.WithCancelCause(context.Background())
	close(c.restored)
	return c
}

// ClientID implements storeconn.Conn.
func (c *Conn) ClientID() string { return c.clientID }

// Start implements storeconn.Conn.
func (c *Conn) Start(events storeconn.Events) {
	c.mu.Lock()
	c.events = events
	up := c.line != nil
	c.mu.Unlock()
	if up {
		events.Up()
	}
	c.pump.Go(c.deliver)
}

func (c *Conn) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// SetFault makes decide choose the Fault of each request from now on; nil ends all faults.
// decide is called from the goroutine that makes the request.
func (c *Conn) SetFault(decide func(Request) Fault) { c.locked(func() { c.fault = decide }) }

// SetNotificationFault makes decide choose the fault of each notification from now on; nil
// ends these faults. decide is called for one notification at a time, in the store's order.
func (c *Conn) SetNotificationFault(decide func(Notification) NotificationFault) {
	c.locked(func() { c.hint = decide })
}

// Forge delivers a notification that the store never sent. Nothing arrives while the
// connection is cut.
func (c *Conn) Forge(notification Notification) {
	c.locked(func() { c.enqueueLocked(notice{ready: true, message: notification, line: c.line}) })
}

// Silence drops all notifications while on is true, as an unreliable broker may.
func (c *Conn) Silence(on bool) { c.locked(func() { c.silent = on }) }

// Cut ends the connection: requests under way fail with ErrOutcomeUnknown, the store forgets
// the client's watches, and nothing arrives until Restore.
func (c *Conn) Cut() { c.leave(nil, false) }

// leave ends the connection if line is the present one or nil, and reports whether it did.
// disconnected stands for DISCONNECT: without one, the Will is executed.
func (c *Conn) leave(line chan struct{}, disconnected bool) (left bool) {
	c.mu.Lock()
	if line == nil {
		c.wanted = false
	}
	if c.line == nil || c.life.Err() != nil || line != nil && line != c.line {
		c.mu.Unlock()
		return false
	}
	close(c.line)
	c.line, c.restored, c.queue = nil, make(chan struct{}), nil
	will := c.will
	if c.will = nil; disconnected || c.ignoreWills {
		will = nil
	}
	down := c.events.Down
	c.mu.Unlock()
	running, _ := c.store.present()
	running.Disconnect(c.clientID)
	if will != nil {
		c.apply(&exchange{request: Request{Payload: will}, correlation: c.correlation()}, false, dropReply)
	}
	down(nil)
	return true
}

// Freeze makes the present connection half-open: both ends stay connected, and nothing
// arrives any more. Requests are never applied. It ends with Cut, or when [Conn.Probe] ends
// the connection. The next connection works.
func (c *Conn) Freeze() { c.locked(func() { c.frozen = c.line }) }

// isFrozen reports whether nothing arrives over a connection.
func (c *Conn) isFrozen(line chan struct{}) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return line != nil && c.frozen == line
}

// reconnectAfter is the time between the end of a connection by Probe and the next one.
const reconnectAfter = 50 * time.Millisecond

// Probe implements storeconn.Conn: it cuts a connection that Freeze made half-open after
// within, and replaces it a moment later. Any other connection answers at once.
func (c *Conn) Probe(within time.Duration) {
	c.mu.Lock()
	line, frozen := c.line, c.frozen
	c.mu.Unlock()
	if line == nil || line != frozen {
		return
	}
	c.after(max(within, time.Nanosecond), func() { // it must not wait
		if c.leave(line, false) {
			c.after(reconnectAfter, c.Restore)
		}
	})
}

// Restore connects again after Cut; while the store is down after a crash, as soon as it is up
// again.
func (c *Conn) Restore() { c.connect(nil) }

// recover connects again after a crash of the store, if Restore was called meanwhile.
func (c *Conn) recover() {
	c.mu.Lock()
	wanted := c.wanted
	c.wanted = false
	c.mu.Unlock()
	if wanted {
		c.connect(nil)
	}
}

// connect returns the new connection, or nil if there is one already, the store is down or the
// Conn has ended.
func (c *Conn) connect(will []byte) (line chan struct{}) {
	c.mu.Lock()
	c.wanted = c.store.isDown()
	if c.wanted || c.line != nil || c.life.Err() != nil {
		c.mu.Unlock()
		return nil
	}
	line = make(chan struct{})
	c.line, c.will = line, will
	close(c.restored)
	up := c.events.Up
	c.mu.Unlock()
	up()
	return line
}

// SetWill implements storeconn.Conn. The store applies the Will when the connection is
// cut or taken over, before Cut returns, and not when the connection is closed or replaced.
// A silent connection never counts as lost.
func (c *Conn) SetWill(ctx context.Context, will []byte) (lost <-chan struct{}, silence time.Duration, err error) {
	for {
		line, _, err := c.awaitLine(ctx, nil)
		if err != nil {
			return nil, 0, err
		}
		if !c.leave(line, true) {
			continue // it was cut at the same moment, and the test restores it
		}
		if line := c.connect(will); line != nil {
			return line, 0, nil
		}
	}
}

// IgnoreWills makes the broker accept Wills and never publish them while on is true, as some
// brokers do.
func (c *Conn) IgnoreWills(on bool) { c.locked(func() { c.ignoreWills = on }) }

// Close implements storeconn.Conn.
func (c *Conn) Close() error {
	c.end(transport.ErrClosed)
	c.pump.Wait()
	return nil
}

// end ends the connection permanently with cause, unless it has ended before. By then
// another connection may have the client's session.
func (c *Conn) end(cause error) {
	c.leave(nil, errors.Is(cause, transport.ErrClosed))
	c.mu.Lock()
	first := c.life.Err() == nil
	c.finish(cause)
	ended := c.events.Ended
	c.mu.Unlock()
	if first {
		ended(cause)
		running, _ := c.store.present()
		running.EndSession(c.clientID)
	}
}

// RoundTrip implements storeconn.Conn.
func (c *Conn) RoundTrip(ctx context.Context, request Request) (Reply, error) {
	if until := request.Binding.Until; !until.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		ctx = bounded
	}
	if while := request.Binding.While; while != nil {
		bounded, end := context.WithCancelCause(ctx)
		defer end(nil)
		defer context.AfterFunc(while, func() { end(context.Cause(while)) })()
		ctx = bounded
	}
	line, decide, err := c.awaitLine(ctx, request.Binding.Connection)
	if err != nil {
		return Reply{}, err
	}
	var fault Fault
	if decide != nil {
		fault = decide(request)
	}
	asked, _ := c.store.present()
	if err := asked.AwaitCapacity(ctx); err != nil {
		return Reply{}, fmt.Errorf("%w: %w", transport.ErrNotSent, err)
	}
	if fault.NoStore {
		return Reply{}, fmt.Errorf("%w: %w", transport.ErrNotSent, transport.ErrNoStore)
	}
	exchange := &exchange{
		asked:       asked,
		request:     request,
		correlation: c.correlation(),
		fault:       fault,
		line:        line,
		arrived:     make(chan Reply, 1),
	}
	c.after(fault.HoldRequest, func() { c.arrive(exchange) })
	select {
	case reply := <-exchange.arrived:
		return reply, nil
	case <-line:
		return Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, errCut)
	case <-ctx.Done():
		return Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// exchange is a request that was sent, and the RoundTrip that waits for its reply.
type exchange struct {
	asked       *engine.Engine // the store to which it was sent
	request     Request
	correlation []byte
	fault       Fault
	line        chan struct{} // the connection it was sent over
	arrived     chan Reply
}

// after calls do after d. If d is zero it calls do before it returns.
func (c *Conn) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	c.store.tasks.Go(func() {
		time.Sleep(d)
		do()
	})
}

// arrive handles a request at the store's end of the connection.
func (c *Conn) arrive(e *exchange) {
	if c.isFrozen(e.line) {
		return
	}
	if e.fault.LoseRequest && e.fault.Cut {
		c.leave(e.line, false)
	}
	if e.fault.LoseRequest || c.isLost(e) {
		return
	}
	c.apply(e, false, func(reply Reply) { c.applied(e, reply) })
}

// applied handles a reply at the store's end of the connection.
func (c *Conn) applied(e *exchange, reply Reply) {
	if e.fault.Repeat {
		c.after(e.fault.RepeatAfter, func() {
			if c.life.Err() == nil && !c.isLost(e) { // else the session or the request is over
				c.apply(e, true, dropReply)
			}
		})
	}
	if e.fault.Cut {
		c.leave(e.line, false)
		return
	}
	if e.fault.LoseReply {
		return
	}
	c.after(e.fault.HoldReply, func() { c.answer(e, reply) })
}

// answer delivers the reply, unless it is lost with the connection.
func (c *Conn) answer(e *exchange, reply Reply) {
	if !closed.Is(e.line) && !c.isFrozen(e.line) {
		e.arrived <- reply // which has space for it
	}
}

// isLost reports whether a request was lost with the store to which it was sent.
func (c *Conn) isLost(e *exchange) bool {
	running, identity := c.store.present()
	return identity == "" && e.asked != running
}

// correlation returns the correlation data of the next request.
func (c *Conn) correlation() []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 8), c.requests.Add(1))
}

func dropReply(Reply) {}

func (c *Conn) apply(e *exchange, again bool, done func(Reply)) {
	delivery := statestore.FirstDelivery
	if again {
		delivery = statestore.Redelivery
	}
	var will []byte // of the connection, while that lasts
	c.mu.Lock()
	if c.will != nil && c.line == e.line && !c.ignoreWills {
		will = c.will
	}
	c.mu.Unlock()
	c.store.apply(statestore.Request{
		Client:       c.clientID,
		Payload:      e.request.Payload,
		Correlation:  e.correlation,
		Delivery:     delivery,
		Timestamp:    property(e.request.Timestamp),
		FencingToken: property(e.request.FencingToken),
		Store:        property(e.request.Binding.Store),
	}, e.request, will, again, done)
}

func property(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// awaitLine waits for a connection, unless that to which a request is bound is lost.
func (c *Conn) awaitLine(
	ctx context.Context, bound <-chan struct{},
) (line chan struct{}, decide func(Request) Fault, err error) {
	for {
		c.mu.Lock()
		line, restored, decide := c.line, c.restored, c.fault
		c.mu.Unlock()
		var why error
		switch {
		case c.life.Err() != nil:
			why = context.Cause(c.life)
		case closed.Is(bound): // after the connection was chosen
			why = errCut
		case ctx.Err() != nil:
			why = context.Cause(ctx)
		case line != nil:
			return line, decide, nil
		}
		if why != nil {
			return nil, nil, fmt.Errorf("%w: %w", transport.ErrNotSent, why)
		}
		select {
		case <-restored:
		case <-c.life.Done():
		case <-ctx.Done():
		}
	}
}

// notice is a notification that has not arrived yet.
type notice struct {
	change  statestore.Notification
	line    chan struct{} // the connection it travels over
	ready   bool          // its fault was chosen, and message is what arrives
	message Notification
}

func (c *Conn) enqueue(change statestore.Notification) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.silent {
		c.enqueueLocked(notice{change: change, line: c.line})
	}
}

// enqueueLocked drops a notification over a connection that is not the present one, or is
// half-open.
func (c *Conn) enqueueLocked(arriving notice) {
	if arriving.line == nil || arriving.line != c.line || arriving.line == c.frozen {
		return
	}
	c.queue = append(c.queue, arriving)
	select {
	case c.queued <- struct{}{}:
	default:
	}
}

// deliver hands notifications to the client, one at a time, until Close.
func (c *Conn) deliver() {
	for {
		select {
		case <-c.life.Done():
			return
		case <-c.queued:
		}
		c.mu.Lock()
		queue, events, decide := c.queue, c.events, c.hint
		c.queue = nil
		c.mu.Unlock()
		for _, next := range queue {
			if next.ready || c.release(&next, decide) {
				events.Notify(next.message)
			}
		}
	}
}

// release applies the fault of a notification and reports whether the notification arrives now.
func (c *Conn) release(next *notice, decide func(Notification) NotificationFault) bool {
	next.ready, next.message = true, c.store.encode(next.change)
	if decide == nil {
		return true
	}
	fault := decide(next.message)
	if fault.Lose {
		return false
	}
	if fault.Repeat {
		c.requeue(*next, fault.Hold+fault.RepeatAfter)
	}
	if fault.Hold > 0 {
		c.requeue(*next, fault.Hold)
		return false
	}
	return true
}

// requeue adds a notification to the queue after d.
func (c *Conn) requeue(arriving notice, d time.Duration) {
	c.after(d, func() { c.locked(func() { c.enqueueLocked(arriving) }) })
}
