package transport

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/priority"
	"github.com/tenurelock/tenure/internal/protocol"
)

// exchange is one request that waits for its reply.
type exchange struct {
	ctx         context.Context // the request is not sent after its end
	request     Request
	correlation correlation
	deadline    time.Time // when the link ends it; zero: the goroutine that waits does

	begun *begun               // gets the result, if no goroutine waits for the request; else nil: done is for the one that waits
	link  atomic.Pointer[link] // that has or had it, if no goroutine waits for it

	done  chan struct{} // gets an item from the goroutine that took the exchange out of link.pending
	reply Reply         // set before, like err
	err   error

	// Guarded by link.mu.
	sent     bool // it may have reached the broker
	accepted bool // the broker has acknowledged it

	// Guarded by the lock of the deadlines that have it.
	position int  // among them; -1: it is in none
	waits    bool // in the waiting room
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
	if e.begun != nil {
		e.begun.finished(reply, err)
		return
	}
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

// waitingRoom has the requests that no goroutine waits for and that cannot be sent yet, because there
// is no connection, or because as many are under way as the broker takes. Those with the earliest
// deadlines leave first.
type waitingRoom struct {
	count  atomic.Int64    // of them, those included that admit is about to post
	counts [2]atomic.Int64 // of the ordinary and of the urgent ones; those that admit has are in neither

	mu       sync.Mutex
	urgent   deadlines
	ordinary deadlines
	closed   error // why no request may wait any more; nil while the connection lives
}

// of returns where a request waits.
func (w *waitingRoom) of(e *exchange) *deadlines {
	if e.request.Urgent {
		return &w.urgent
	}
	return &w.ordinary
}

// unlock notes how many requests wait, for a window, which must not take the lock.
func (w *waitingRoom) unlock() {
	w.counts[0].Store(int64(w.ordinary.requests.Len()))
	w.counts[1].Store(int64(w.urgent.requests.Len()))
	w.mu.Unlock()
}

// has returns how many requests of a kind wait.
func (w *waitingRoom) has(urgent bool) int {
	if urgent {
		return int(w.counts[1].Load())
	}
	return int(w.counts[0].Load())
}

// add lets a request wait. The error says why it must not.
func (w *waitingRoom) add(e *exchange) error {
	w.mu.Lock()
	defer w.unlock()
	if w.closed != nil {
		return w.closed
	}
	w.of(e).add(e)
	e.waits = true
	return nil
}

// take returns the request that leaves next, or nil if none waits.
func (w *waitingRoom) take() *exchange {
	w.mu.Lock()
	defer w.unlock()
	e := w.urgent.first()
	if e == nil {
		e = w.ordinary.first()
	}
	if e != nil {
		w.of(e).remove(e)
		e.waits = false
	}
	return e
}

// remove takes a request back, and reports false if it does not wait here.
func (w *waitingRoom) remove(e *exchange) bool {
	w.mu.Lock()
	defer w.unlock()
	if !e.waits {
		return false
	}
	w.of(e).remove(e)
	e.waits = false
	return true
}

// fired returns the requests of one kind that are overdue.
func (w *waitingRoom) fired(d *deadlines) []*exchange {
	w.mu.Lock()
	defer w.unlock()
	over := d.fired()
	for _, e := range over {
		e.waits = false
	}
	return over
}

// broken returns the requests that wait in vain, because the connection of their binding was lost.
func (w *waitingRoom) broken() (broken []*exchange) {
	w.mu.Lock()
	defer w.unlock()
	for _, d := range []*deadlines{&w.urgent, &w.ordinary} {
		for _, e := range slices.Clone(d.requests.Items()) {
			if e.request.Binding.Err() != nil {
				d.remove(e)
				e.waits = false
				broken = append(broken, e)
			}
		}
	}
	return broken
}

// close lets no request wait any more, and returns those that do.
func (w *waitingRoom) close(cause error) (waiting []*exchange) {
	w.mu.Lock()
	defer w.unlock()
	w.closed = cause
	for _, d := range []*deadlines{&w.urgent, &w.ordinary} {
		d.stop()
		waiting = append(waiting, d.requests.Items()...)
		d.requests = nil
	}
	for _, e := range waiting {
		e.waits = false
	}
	return waiting
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
func readMessage(p *frame.Publish) message {
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
// requests, which also take each free slot first. Within each kind, the requests of goroutines
// take their turns in order, and in turns with the requests of the waiting room: neither can starve the other.
type window struct {
	size     int                   // slots in all
	reserved int                   // of them for urgent requests
	freed    func()                // is called with the lock when a slot may be free; nil: nothing is. It must not block
	others   func(urgent bool) int // how many requests wait in the waiting room; nil: there is none. It must not block

	mu       sync.Mutex
	used     int             // those that are kept included
	kept     int             // for requests of the waiting room, until giveBack
	turn     bool            // the latest slot that both kinds of waiting requests wanted was kept
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

// tryAcquireKept is tryAcquire for a request that comes out of the waiting room: it may have a
// slot that is kept for it.
func (w *window) tryAcquireKept(urgent bool) bool {
	_, room := w.lineOf(urgent)
	w.mu.Lock()
	if w.kept > 0 && w.used <= room {
		w.kept--
		w.mu.Unlock()
		return true
	}
	w.mu.Unlock()
	return w.tryAcquire(urgent)
}

// giveBack frees the slots that were kept for requests of the waiting room and that none has taken.
func (w *window) giveBack() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; w.kept > 0; w.kept-- {
		w.freeLocked()
	}
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
	if w.freed != nil {
		w.freed()
	}
}

// admitLocked gives slots to the requests of a kind that wait in line, while not too many are in use.
// Each second one is kept for the waiting room, if that has a request of this kind, or an urgent one: there
// are no reserved slots if there are few in all.
func (w *window) admitLocked(urgent bool) {
	line, room := w.lineOf(urgent)
	for len(*line) > 0 && w.used < room {
		w.used++
		if w.turn = !w.turn && w.others != nil && max(w.others(urgent), w.others(true)) > w.kept; w.turn {
			w.kept++
			continue
		}
		close((*line)[0])
		*line = slices.Delete(*line, 0, 1)
	}
}
