package transport

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/priority"
	"github.com/tenurelock/tenure/internal/protocol"
)

// exchange is one request that waits for its reply.
type exchange struct {
	ctx         context.Context // the request is not sent after its end
	request     Request
	correlation correlation
	deadline    time.Time // when the link ends it; zero: the goroutine that waits does

	done  chan struct{} // gets an item from the goroutine that took the exchange out of link.pending
	reply Reply         // set before, like err
	err   error

	// Guarded by link.mu.
	sent     bool // it may have reached the broker
	accepted bool // the broker has acknowledged it

	position int // among the deadlines of the link; -1: it is not among them
}

// correlation is the correlation data of a request; deployed stores refuse another length.
type correlation [16]byte

// choose fills in correlation data that no other request has. It cannot be guessed, so only
// a peer that sees the request can answer it.
func (id *correlation) choose() {
	_, _ = rand.Read(id[:]) // never fails, says its documentation
}

func newExchange(ctx context.Context, request Request) *exchange {
	e := &exchange{ctx: ctx, request: request, done: make(chan struct{}, 1)}
	e.correlation.choose()
	return e
}

// exchangePool has exchanges that ended, with their channels, for the next requests. Each
// connection has its own: a channel of a synctest bubble must not be used outside of it.
type exchangePool struct{ sync.Pool }

// get returns a new exchange, or one that ended.
func (p *exchangePool) get(ctx context.Context, request Request) *exchange {
	e, ok := p.Get().(*exchange)
	if !ok {
		return newExchange(ctx, request)
	}
	e.ctx, e.request = ctx, request
	e.correlation.choose()
	return e
}

// put takes an exchange whose result was read by the only goroutine that knows it. One that was
// not sent may still be in a queue, and is not used again.
func (p *exchangePool) put(e *exchange) {
	if e.sent {
		*e = exchange{done: e.done}
		p.Put(e)
	}
}

// end gives an exchange its result. Only the goroutine that took it out of link.pending may
// call it, without a lock.
func (e *exchange) end(reply Reply, err error) {
	e.reply, e.err = reply, err
	e.done <- struct{}{}
}

// until returns when the request is given up at the latest; ok is false if it has no end.
func (e *exchange) until() (deadline time.Time, ok bool) {
	deadline, ok = e.ctx.Deadline()
	if e.deadline.IsZero() || ok && deadline.Before(e.deadline) {
		return deadline, ok
	}
	return e.deadline, true
}

// ended are exchanges that were taken out of link.pending with a lock held, with their results.
type ended []func()

// add notes the result of an exchange.
func (all *ended) add(e *exchange, reply Reply, err error) {
	*all = append(*all, func() { e.end(reply, err) })
}

// tell gives the exchanges their results. The caller holds no lock.
func (all ended) tell() {
	for _, tell := range all {
		tell()
	}
}

// deadlines calls a function when the first of its exchanges is overdue. One timer serves all of
// them: few requests live long enough to need it, and it is not set again for each. Its methods need
// the lock of its owner.
type deadlines struct {
	call  func()          // runs in a goroutine of its own: fired, and then whatever is to be done
	tasks *sync.WaitGroup // has one for each call that is due or under way; call is to end it

	requests *priority.Queue[exchange] // the earliest deadline leaves first; nil before the first exchange
	timer    *time.Timer               // likewise
	at       time.Time                 // when it calls; zero: it does not
}

// add adds an exchange with a deadline.
func (d *deadlines) add(e *exchange) {
	if d.requests == nil {
		d.requests = priority.New(
			func(a, b *exchange) bool { return a.deadline.Before(b.deadline) },
			func(e *exchange) *int { return &e.position },
		)
	}
	d.requests.Push(e)
	if d.at.IsZero() || e.deadline.Before(d.at) {
		d.set(e.deadline)
	}
}

// remove removes an exchange. The timer stays as it is: a call that finds nothing does no harm.
func (d *deadlines) remove(e *exchange) { d.requests.Remove(e) }

// first returns the exchange with the earliest deadline, or nil.
func (d *deadlines) first() *exchange { return d.requests.First() }

// fired returns, at the beginning of a call, the exchanges that are overdue by now.
func (d *deadlines) fired() (over []*exchange) {
	d.at = time.Time{}
	for now := time.Now(); d.first() != nil && !d.first().deadline.After(now); {
		over = append(over, d.requests.Pop())
	}
	if next := d.first(); next != nil {
		d.set(next.deadline)
	}
	return over
}

func (d *deadlines) set(at time.Time) {
	d.stop()
	d.at = at
	d.tasks.Add(1)
	if d.timer == nil {
		d.timer = time.AfterFunc(time.Until(at), d.call)
	} else {
		d.timer.Reset(time.Until(at))
	}
}

// stop prevents the next call, unless it has begun. The owner adds nothing afterwards, if it is
// about to wait for tasks.
func (d *deadlines) stop() {
	d.at = time.Time{}
	if d.timer != nil && d.timer.Stop() {
		d.tasks.Done()
	}
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

func (q *queue) isEmpty() bool { return q.first == len(q.exchanges) }

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

// message is a PUBLISH that arrived. Its slices may be overwritten after link.deliver returns.
type message struct {
	topic, correlation, payload []byte
	// User properties, empty where there is none.
	timestamp, status, statusMessage, store, instance []byte
}

// readMessage returns the parts of a PUBLISH that count here.
func readMessage(p *mqtt.Publish) message {
	m := message{topic: p.Topic, correlation: p.CorrelationData, payload: p.Payload}
	for name, value := range p.Users {
		if property := m.property(name); property != nil && *property == nil {
			*property = value // the first of a name counts
		}
	}
	return m
}

// property returns where the user property of a name belongs, or nil if it is of no interest.
func (m *message) property(name []byte) *[]byte {
	switch string(name) {
	case protocol.PropertyTimestamp:
		return &m.timestamp
	case protocol.PropertyStatus:
		return &m.status
	case protocol.PropertyStatusMessage:
		return &m.statusMessage
	case protocol.PropertyStore:
		return &m.store
	case protocol.PropertyInstance:
		return &m.instance
	}
	return nil
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

// window limits the requests that are under way at the same time: from just before they are
// sent until the broker acknowledges them [MQTT-4.9.0-2]. A few slots are reserved for urgent
// requests, which also take each free slot first. Within each kind, requests take their turns in order.
type window struct {
	size     int // slots in all
	reserved int // of them for urgent requests

	mu       sync.Mutex
	used     int
	urgent   []chan struct{} // one for each waiting request, in order; closed when it gets a slot
	ordinary []chan struct{} // likewise
}

const (
	// One slot in reservedShare is reserved for urgent requests; none if there are fewer.
	reservedShare = 8
	// maxReserved is how many slots are reserved at most.
	maxReserved = 16
)

func newWindow(size int) *window {
	return &window{size: size, reserved: min(size/reservedShare, maxReserved)}
}

// acquire waits for a slot and reports whether it got one before ctx ended or down was
// closed.
func (w *window) acquire(ctx context.Context, down <-chan struct{}, urgent bool) bool {
	line, room := w.lineOf(urgent)
	w.mu.Lock()
	if len(*line) == 0 && w.used < room {
		w.used++
		w.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	*line = append(*line, turn)
	w.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	case <-down:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := slices.Index(*line, turn); at >= 0 {
		*line = slices.Delete(*line, at, at+1)
		return false
	}
	w.freeLocked() // the request got the slot at the same moment
	return false
}

// lineOf returns where a request waits, and how many slots it may be one of.
func (w *window) lineOf(urgent bool) (line *[]chan struct{}, room int) {
	if urgent {
		return &w.urgent, w.size
	}
	return &w.ordinary, w.size - w.reserved
}

// tryAcquire takes a slot if there is one and no request waits for it. It does not wait.
func (w *window) tryAcquire(urgent bool) bool {
	line, room := w.lineOf(urgent)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(*line) > 0 || w.used >= room {
		return false
	}
	w.used++
	return true
}

// free returns a slot, which another request may take.
func (w *window) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeLocked()
}

func (w *window) freeLocked() {
	w.used = max(w.used-1, 0) // a broker may acknowledge what was not sent
	w.admitLocked(true)
	w.admitLocked(false)
}

// admitLocked gives slots to the requests of a kind that wait in line, while not too many are in use.
func (w *window) admitLocked(urgent bool) {
	for line, room := w.lineOf(urgent); len(*line) > 0 && w.used < room; w.used++ {
		close((*line)[0])
		*line = slices.Delete(*line, 0, 1)
	}
}
