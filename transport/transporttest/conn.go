package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Fault is what the wire does to one request and its reply. The zero Fault does
// nothing. Several faults of one message come together: a request can be held for
// minutes, be applied, and have its reply lost.
//
// A request that is held back is applied when its time comes, even if its sender has
// given up and the connection is gone: so do packets that a broker or a network kept.
// A reply, held or not, arrives over the connection that the request left by, or not
// at all. Messages that are held for different times overtake one another: to reorder
// two, hold the first for longer than the second.
type Fault struct {
	// LoseRequest and LoseReply drop the message; the sender waits in vain.
	LoseRequest, LoseReply bool
	// NoStore makes the broker say that it knows no store; the request is not applied.
	NoStore bool
	// CutBefore and CutAfter cut the connection before the store gets the request,
	// which is then never applied, or after the store has applied it and before the
	// reply leaves. To the sender both look the same. They act as Conn.Cut does, when
	// the request arrives.
	CutBefore, CutAfter bool
	// Repeat delivers the request twice, as a redelivery does: with the same
	// correlation data, and only while the client's session lasts. The reply to the
	// second is dropped. RepeatAfter is how much later the second comes.
	Repeat      bool
	RepeatAfter time.Duration
	// RepeatReply delivers the reply twice.
	RepeatReply bool
	// HoldRequest and HoldReply delay it.
	HoldRequest, HoldReply time.Duration
}

// NotificationFault is what the wire does to one notification. The zero
// NotificationFault does nothing.
type NotificationFault struct {
	// Lose drops it.
	Lose bool
	// Repeat delivers it twice, the second time after RepeatAfter.
	Repeat      bool
	RepeatAfter time.Duration
	// Hold delays it, so that later ones overtake it. It does not arrive if the
	// connection is cut meanwhile.
	Hold time.Duration
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
	hint     func(transport.Notification) NotificationFault
	queue    []notice
	silent   bool
	requests uint64             // so far
	will     *transport.Request // of the present connection; nil if it has none
	frozen   chan struct{}      // the connection that Freeze made half-open, if any
	probed   chan struct{}      // the connection that a Probe is under way on, if any

	ignoreWills bool

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

// SetNotificationFault lets decide choose the fate of each notification from now on;
// nil ends these faults. It is called for one notification at a time, in the store's
// order.
func (c *Conn) SetNotificationFault(decide func(transport.Notification) NotificationFault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hint = decide
}

// Forge delivers a notification that the store never sent. Nothing arrives while the
// connection is cut.
func (c *Conn) Forge(notification transport.Notification) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueueLocked(notice{ready: true, message: notification, line: c.line})
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
	c.cut(nil)
}

// cut ends the connection, without a farewell, if line is its present one, or nil.
func (c *Conn) cut(line chan struct{}) { c.leave(line, false) }

// leave ends the connection if line is its present one, or nil, and reports whether it
// did. Without a farewell its will is executed.
func (c *Conn) leave(line chan struct{}, farewell bool) (left bool) {
	c.mu.Lock()
	if c.line == nil || c.ended != nil || line != nil && line != c.line {
		c.mu.Unlock()
		return false
	}
	close(c.line)
	c.line, c.restored, c.queue = nil, make(chan struct{}), nil
	will := c.will
	if c.will = nil; farewell || c.ignoreWills {
		will = nil
	}
	events, started := c.events, c.started
	c.mu.Unlock()
	running, _ := c.store.present()
	running.Disconnect(c.clientID)
	if will != nil {
		c.execute(will)
	}
	if started {
		events.Down()
	}
	return true
}

// Freeze makes the present connection half-open: both ends stay connected, and nothing
// arrives any more, neither requests, which are never applied, nor replies and
// notifications. It ends with Cut, or when [Conn.Probe] gives the connection up. The next
// connection works.
func (c *Conn) Freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = c.line
}

// isFrozen reports whether nothing arrives over a connection.
func (c *Conn) isFrozen(line chan struct{}) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return line != nil && c.frozen == line
}

var _ transport.Prober = (*Conn)(nil)

// reconnectAfter is how long a connection that Probe gave up takes to be replaced.
const reconnectAfter = 50 * time.Millisecond

// Probe implements transport.Prober: a connection that Freeze made half-open is cut after
// within, and replaced a moment later. Any other shows a sign of life at once.
func (c *Conn) Probe(within time.Duration) {
	c.mu.Lock()
	line := c.line
	suspect := line != nil && c.frozen == line && c.probed != line
	if suspect {
		c.probed = line
	}
	c.mu.Unlock()
	if !suspect {
		return
	}
	c.after(max(within, time.Nanosecond), func() { // it must not wait
		if c.leave(line, false) {
			c.after(reconnectAfter, c.Restore)
		}
	})
}

// Restore connects again after Cut.
func (c *Conn) Restore() { c.connect(nil) }

// connect returns the new connection, or nil if there is one already or will be none
// any more.
func (c *Conn) connect(will *transport.Request) (line chan struct{}) {
	c.mu.Lock()
	if c.line != nil || c.ended != nil {
		c.mu.Unlock()
		return nil
	}
	line = make(chan struct{})
	c.line, c.will = line, will
	close(c.restored)
	events, started := c.events, c.started
	c.mu.Unlock()
	if started {
		events.Up()
	}
	return line
}

// Close implements transport.Conn.
func (c *Conn) Close() error {
	c.end(transport.ErrClosed)
	c.pump.Wait()
	return nil
}

// end makes cause the end of the connection, for good, unless it had ended
// before. By then the client's session may be that of another connection.
func (c *Conn) end(cause error) {
	c.leave(nil, errors.Is(cause, transport.ErrClosed))
	c.mu.Lock()
	first := c.ended == nil
	if first {
		c.ended = cause
		close(c.finished)
	}
	ended := c.events.Ended
	c.mu.Unlock()
	if first && ended != nil {
		ended(cause)
	}
	if first {
		running, _ := c.store.present()
		running.EndSession(c.clientID)
	}
}

// RoundTrip implements transport.Conn.
func (c *Conn) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	err := request.Binding.Err()
	if err != nil {
		return transport.Reply{}, err
	}
	line, decide, err := c.awaitLine(ctx)
	if err == nil {
		err = request.Binding.Err() // again: it may have waited for the next connection
	}
	if err != nil {
		return transport.Reply{}, err
	}
	var fault Fault
	if decide != nil {
		fault = decide(request)
	}
	asked, _ := c.store.present()
	if fault.NoStore {
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrNotSent, transport.ErrNoStore)
	}
	exchange := &exchange{
		asked:       asked,
		request:     request,
		correlation: c.correlation(),
		fault:       fault,
		line:        line,
		arrived:     make(chan transport.Reply, 1),
		left:        make(chan struct{}),
	}
	defer close(exchange.left)
	if fault.outlasts() {
		exchange.request.Payload = bytes.Clone(request.Payload)
	}
	c.after(fault.HoldRequest, func() { c.arrive(exchange) })
	select {
	case reply := <-exchange.arrived:
		return reply, nil
	case <-line:
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, errCut)
	case <-ctx.Done():
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// outlasts reports whether the request may be applied after its sender has left.
func (f *Fault) outlasts() bool { return f.HoldRequest > 0 || f.Repeat && f.RepeatAfter > 0 }

// exchange is a request that was sent, and its sender.
type exchange struct {
	asked       *engine.Engine // the store to which it was sent
	request     transport.Request
	correlation []byte
	fault       Fault
	line        chan struct{} // the connection it was sent over
	arrived     chan transport.Reply
	left        chan struct{} // closed when the sender waits no more
}

// after runs do when d is over; at once, before it returns, if d is zero.
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

// arrive is what happens when a request has reached the store's end of the wire.
func (c *Conn) arrive(e *exchange) {
	if c.isFrozen(e.line) {
		return
	}
	if e.fault.CutBefore {
		c.cut(e.line)
		return
	}
	if e.fault.LoseRequest || c.isLost(e) {
		return
	}
	reply := c.apply(e, false)
	if e.fault.Repeat {
		c.after(e.fault.RepeatAfter, func() {
			if !c.isOver() && !c.isLost(e) {
				c.apply(e, true)
			}
		})
	}
	if e.fault.CutAfter {
		c.cut(e.line)
		return
	}
	if e.fault.LoseReply {
		return
	}
	c.after(e.fault.HoldReply, func() {
		c.answer(e, reply)
		if e.fault.RepeatReply {
			c.answer(e, reply)
		}
	})
}

// answer delivers a reply, to nobody if the sender has left or was answered.
func (c *Conn) answer(e *exchange, reply transport.Reply) {
	select {
	case <-e.line:
		return // it left with the connection
	default:
	}
	if c.isFrozen(e.line) {
		return
	}
	select {
	case <-e.left:
	default:
		select {
		case e.arrived <- reply:
			return
		default:
		}
	}
	c.mu.Lock()
	ignored := c.events.Ignored
	c.mu.Unlock()
	if ignored != nil {
		ignored(transport.UnexpectedReply)
	}
}

// isLost reports whether a request was lost with the store to which it was sent.
func (c *Conn) isLost(e *exchange) bool {
	running, identity := c.store.present()
	return identity == "" && e.asked != running
}

// isOver reports whether the client's session has ended.
func (c *Conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// correlation returns the correlation data of the next request.
func (c *Conn) correlation() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	return binary.BigEndian.AppendUint64(make([]byte, 8), c.requests)
}

func (c *Conn) apply(e *exchange, again bool) transport.Reply {
	return c.store.apply(statestore.Request{
		Client:       c.clientID,
		Payload:      e.request.Payload,
		Correlation:  e.correlation,
		Timestamp:    property(e.request.Timestamp),
		FencingToken: property(e.request.FencingToken),
		Store:        property(e.request.Binding.Store),
	}, e.request, again)
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

// notice is a notification on its way.
type notice struct {
	change  statestore.Notification
	line    chan struct{} // the connection it travels over
	ready   bool          // its fate was decided, and message is what arrives
	message transport.Notification
}

func (c *Conn) enqueue(change statestore.Notification) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.silent {
		c.enqueueLocked(notice{change: change, line: c.line})
	}
}

// enqueueLocked drops what came over another connection than the present one, or over one
// that is half-open.
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
		case <-c.finished:
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

// release decides what becomes of a notification and reports whether it arrives now.
func (c *Conn) release(next *notice, decide func(transport.Notification) NotificationFault) bool {
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

// requeue lets a notification arrive when d is over, after what has come till then.
func (c *Conn) requeue(arriving notice, d time.Duration) {
	c.after(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.enqueueLocked(arriving)
	})
}
