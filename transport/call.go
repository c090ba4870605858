package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/storeconn"
)

// call is a request from RoundTrip to its reply. It waits in the queue of the mqttConn until a link
// takes it, and then among the pending ones of the link.
type call struct {
	ctx         context.Context // like request.Binding, it bounds the call
	request     storeconn.Request
	deadline    time.Time       // when it is given up at the latest; zero: never
	gone, over  <-chan struct{} // closed when ctx, or request.Binding.While, ends
	correlation correlation
	timer       *time.Timer // fires at request.Binding.Until

	done  chan struct{}   // gets an item from the goroutine that took the call out of the queue or of the link
	reply storeconn.Reply // set before, like err
	err   error

	// Guarded by mqttConn.mu.
	link       *link // that took it, and may have sent it; nil: none
	accepted   bool  // the broker has acknowledged it
	leftBehind bool  // its turn came when it was given up: its caller takes it back
}

// correlation is the correlation data of a request; deployed stores refuse another length.
type correlation [16]byte

// choose fills in correlation data that no other request has. It cannot be guessed, so only
// a peer that sees the request can answer it.
func (id *correlation) choose() {
	_, _ = rand.Read(id[:]) // never fails, says its documentation
}

// calls has calls that ended, for the next requests. Each connection has its own: a channel of a
// synctest bubble must not be used outside of it.
type calls struct{ sync.Pool }

// get returns a call for a request.
func (p *calls) get(ctx context.Context, request storeconn.Request) *call {
	c, ok := p.Get().(*call)
	if !ok {
		c = &call{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	}
	c.ctx, c.request = ctx, request
	c.gone = ctx.Done()
	c.deadline, _ = ctx.Deadline()
	if until := request.Binding.Until; !until.IsZero() && (c.deadline.IsZero() || until.Before(c.deadline)) {
		c.deadline = until
	}
	if while := request.Binding.While; while != nil {
		c.over = while.Done()
	}
	return c
}

// put takes a call back that is in no queue and on no link.
func (p *calls) put(c *call) {
	*c = call{done: c.done, timer: c.timer}
	p.Put(c)
}

// end gives a call its result. Only the goroutine that took it out of the queue or of its link may do so.
func (c *call) end(reply storeconn.Reply, err error) {
	c.reply, c.err = reply, err
	c.done <- struct{}{}
}

// wait returns nil when the call has a result, and why its caller gives it up if that comes first.
func (c *call) wait() (cause error) {
	var late <-chan time.Time
	if until := c.request.Binding.Until; !until.IsZero() {
		c.timer.Reset(time.Until(until))
		defer c.timer.Stop()
		late = c.timer.C
	}
	select {
	case <-c.done:
		return nil
	case <-late:
		return context.DeadlineExceeded
	case <-c.gone:
	case <-c.over:
	}
	return c.whyGivenUp()
}

// whyGivenUp returns why a context of the call has ended, or nil. Contexts are functions of the program: they are
// not asked with a lock.
func (c *call) whyGivenUp() error {
	while := c.request.Binding.While
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case while != nil && while.Err() != nil:
		return context.Cause(while)
	}
	return nil
}

// RoundTrip implements Conn. It obeys the bounds of the binding by itself, which spares the caller a
// context of its own, of five allocations.
func (c *mqttConn) RoundTrip(ctx context.Context, request storeconn.Request) (storeconn.Reply, error) {
	call := c.calls.get(ctx, request)
	if err := c.enqueue(call); err != nil {
		return storeconn.Reply{}, err
	}
	err := c.await(call)
	reply := call.reply
	c.calls.put(call)
	return reply, err
}

// await returns the error of a call, when it has a result or its caller gives it up.
func (c *mqttConn) await(call *call) error {
	if cause := call.wait(); cause != nil {
		if err := c.abandon(call, cause); err != nil {
			return err
		}
		<-call.done // the result came at the same moment
	}
	return call.err
}

// enqueue lets a call wait for a link that takes it. Urgent ones leave before all others; within each
// kind they take turns in order.
func (c *mqttConn) enqueue(call *call) error {
	cause := call.whyGivenUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.life.Err() != nil:
		return notSent(context.Cause(c.life))
	case closed.Is(call.request.Binding.Connection):
		return notSent(errBoundConnection)
	case cause != nil:
		return notSent(c.heldBackLocked(call, cause))
	}
	at := len(c.queue)
	if call.request.Binding.Urgent {
		at = sort.Search(at, func(i int) bool { return !c.queue[i].request.Binding.Urgent })
	}
	c.queue = slices.Insert(c.queue, at, call)
	if c.link != nil {
		signal(c.link.wake)
	}
	return nil
}

var errBoundConnection = errors.New("the connection to which the request is bound was lost")

// nextLocked takes the next call out of the queue, or returns nil if the link takes none: it counts
// against the Receive Maximum from here until the broker acknowledges it [MQTT-4.9.0-2].
func (c *mqttConn) nextLocked(l *link) *call {
	if l.leaving || c.link != l || len(c.queue) == 0 || !l.hasRoom(c.queue[0]) {
		return nil
	}
	first := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	return first
}

// abandon takes a call back whose caller gives up because of cause, and returns the error for the
// caller: nil if the call has ended meanwhile.
func (c *mqttConn) abandon(call *call, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, i := call.link, slices.Index(c.queue, call)
	switch {
	case i >= 0:
		c.queue = slices.Delete(c.queue, i, i+1)
		return notSent(c.heldBackLocked(call, cause))
	case call.leftBehind:
		return notSent(cause)
	case l == nil || !l.takeLocked(call):
		return nil
	case call.accepted && !l.answered && errors.Is(cause, context.DeadlineExceeded):
		cause = fmt.Errorf("%w: the broker took the request, but it seems that %w", cause, errNoStore)
	}
	return unknown(cause)
}

// errNoStore is ErrNoStore with what to do about it.
var errNoStore = fmt.Errorf("%w: does `tenure attach` run beside it, and is this the right broker?", ErrNoStore)

// heldBackLocked adds to the cause for which a call is given up why it did not leave, if that is known.
func (c *mqttConn) heldBackLocked(call *call, cause error) error {
	l := c.link
	if l == nil {
		return c.unconnectedLocked(cause)
	}
	if !l.hasRoom(call) {
		return fmt.Errorf("%w: as many requests are under way as the broker takes (Receive Maximum %d)",
			cause, l.client.ReceiveMaximum)
	}
	return cause
}

// failQueuedLocked ends the calls of the queue for which why returns an error.
func (c *mqttConn) failQueuedLocked(why func(*call) error) {
	c.queue = slices.DeleteFunc(c.queue, func(call *call) bool {
		err := why(call)
		if err != nil {
			call.end(storeconn.Reply{}, err)
		}
		return err != nil
	})
}

// appendLocked adds the packet of a request, with a packet id, to those that are to be written. The
// error says why there can be none.
func (l *link) appendLocked(c *call, id uint16, now time.Time) error {
	if closed.Is(c.request.Binding.Connection) { // nil: it is not bound
		return notSent(errBoundConnection)
	}
	var expiry float64 // in seconds, rounded up: so a broker drops a request that its caller has given up; 0: none
	if !c.deadline.IsZero() {
		if expiry = math.Ceil(c.deadline.Sub(now).Seconds()); expiry <= 0 {
			return notSent(context.DeadlineExceeded)
		}
	}
	l.message = mqtt.Message{
		Topic:           protocol.InvokeTopic,
		QoS:             1,
		PacketID:        id,
		MessageExpiry:   uint32(min(expiry, math.MaxUint32)),
		ContentType:     protocol.ContentType,
		ResponseTopic:   l.replies,
		CorrelationData: c.correlation[:],
		User:            requestProperties(l.message.User[:0], l.conn.ClientID(), &c.request),
		Payload:         c.request.Payload,
	}
	batch, err := l.message.Append(l.packets)
	if err != nil {
		return notSent(err)
	}
	// The broker would end the connection [MQTT-3.2.2-15].
	if size := len(batch) - len(l.packets); size > l.client.MaxPacket {
		return &RejectedError{
			Code: packets.ConnackPacketTooLarge,
			Reason: fmt.Sprintf("the request makes a packet of %d bytes, and the broker takes at most %d",
				size, l.client.MaxPacket),
		}
	}
	l.packets = batch
	return nil
}

// requestProperties appends the user properties of a request.
func requestProperties(dst []mqtt.UserProperty, clientID string, request *storeconn.Request) []mqtt.UserProperty {
	for _, property := range [...]mqtt.UserProperty{
		{Name: protocol.PropertySourceID, Value: clientID},
		{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
		{Name: protocol.PropertyPartition, Value: clientID},
		{Name: protocol.PropertyTimestamp, Value: request.Timestamp},
		{Name: protocol.PropertyFencingToken, Value: request.FencingToken},
		{Name: protocol.PropertyStore, Value: request.Binding.Store},
		{Name: protocol.PropertyPersistence, Value: request.Persist},
		{Name: protocol.PropertyForced, Value: request.Forced},
		{Name: protocol.PropertyWaiting, Value: request.Waiting},
	} {
		if property.Value != "" {
			dst = append(dst, property)
		}
	}
	return dst
}
