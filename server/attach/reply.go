package attach

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// replyTooLarge replaces a reply that is larger than the broker takes. It is not one of the refusals
// of the protocol: clients get its text.
const replyTooLarge protocol.Refusal = "the reply is larger than the broker takes"

// address is where the reply to a request goes.
type address struct {
	client, topic string
	correlation   []byte
}

// room returns how many bytes a reply takes while it waits, without a value.
func (to *address) room() int64 { return replyOverhead + int64(len(to.topic)+len(to.correlation)) }

// reply sends a reply with QoS 0, as server.Server does: neither the store nor the broker waits
// for a client that does not read.
func (l *link) reply(to address, reply statestore.Reply) {
	if l.send(l.response(to, reply)) || reply.Outcome != statestore.Found {
		return
	}
	// Only a value makes a reply large. Tell the client, so that it need not wait for nothing.
	l.send(l.response(to, statestore.Reply{Verb: reply.Verb, Err: replyTooLarge}))
}

func (l *link) response(to address, reply statestore.Reply) *mqtt.Message {
	response := l.message(to.client, to.topic, protocol.PropertyStatus, protocol.StatusOK)
	response.Payload, response.CorrelationData = reply.Append(nil), to.correlation
	if !reply.Version.IsZero() {
		version := mqtt.UserProperty{Name: protocol.PropertyTimestamp, Value: reply.Version.String()}
		response.User = append(response.User, version)
	}
	return response
}

// storeBusy is the text for a request that the store did not take, because too much waits for its
// journal. The request has no other effect.
const storeBusy = "too much waits for the journal of the store; try again"

// refuse answers a request that the store did not take. The reply says that the outcome is unknown
// rather than that nothing changed: the request may be a redelivery of one that the store has applied.
func (l *link) refuse(to address) {
	l.store.count(func(stats *Stats) { stats.Busy++ })
	l.store.busy.Log("client", logs.Name(to.client), "waiting", l.store.engine.Waiting())
	response := l.message(to.client, to.topic, protocol.PropertyStatus, protocol.StatusUnavailable)
	response.User = append(response.User, mqtt.UserProperty{Name: protocol.PropertyStatusMessage, Value: storeBusy})
	response.CorrelationData = to.correlation
	l.send(response)
}

// waitingReply is a reply that waits for a commit, since it shows a change that the journal does not
// have yet, or to be sent behind such replies. The goroutine that has the request and the engine's add
// their parts, in any order.
type waitingReply struct {
	address
	change, bytes int64            // of the backlog
	refused       bool             // no room for the value
	reply         statestore.Reply // of the engine's goroutine
	parts         atomic.Int32     // how many of the two goroutines have added their part
}

// replyQueue is the queue of the replies of one connection that had to wait for a commit. It is safe
// for concurrent use.
type replyQueue struct {
	backlog *backlog
	ended   <-chan struct{} // closed with the connection
	wake    chan struct{}   // has an item after a reply was queued
	left    chan struct{}   // has an item after a reply has left

	mu       sync.Mutex
	queue    []*waitingReply // whose commits are over
	promised int             // those, those that wait for a commit, and the one that is being sent
	closed   bool
}

func newReplyQueue(backlog *backlog, ended <-chan struct{}) *replyQueue {
	return &replyQueue{backlog: backlog, ended: ended, wake: make(chan struct{}, 1), left: make(chan struct{}, 1)}
}

// promise notes that a reply will be added, which has room in the backlog.
func (q *replyQueue) promise() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.promised++
}

// cancel gives back the room of a reply that need not wait.
func (q *replyQueue) cancel(w *waitingReply) {
	q.backlog.cancel(w.client, w.change, w.bytes)
	q.leave()
}

// leave notes that a promised reply is sent, or will not be.
func (q *replyQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.promised--
	signalOne(q.left)
}

// added notes that a part of a reply is complete. It queues the reply if both are, and drops it if it
// was refused or the connection has ended.
func (q *replyQueue) added(w *waitingReply) {
	if w.parts.Add(1) < 2 {
		return
	}
	q.backlog.committed(w.client, w.change)
	if w.refused || !q.push(w) {
		q.sent(w)
	}
}

// push queues a reply. It reports false if the connection has ended.
func (q *replyQueue) push(w *waitingReply) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.queue = append(q.queue, w)
	signalOne(q.wake)
	return true
}

// next returns the next reply to send.
func (q *replyQueue) next() (first *waitingReply, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return pop(&q.queue)
}

// sent gives back the room of a reply that next has returned.
func (q *replyQueue) sent(w *waitingReply) {
	q.backlog.sent(w.client, w.bytes)
	q.leave()
}

// close drops the replies of a connection that has ended: those that wait to be sent, and those that
// still wait for a commit when that is over.
func (q *replyQueue) close() {
	q.mu.Lock()
	queue := q.queue
	q.queue, q.closed = nil, true
	q.mu.Unlock()
	for _, w := range queue {
		q.sent(w)
	}
}

// flush waits until no reply waits, neither for a commit nor to be sent. It reports false if ctx or
// the connection ends before. No request may come meanwhile.
func (q *replyQueue) flush(ctx context.Context) bool {
	for {
		q.mu.Lock()
		promised := q.promised
		q.mu.Unlock()
		if promised == 0 {
			return true
		}
		select {
		case <-q.left:
		case <-ctx.Done():
			return false
		case <-q.ended:
			return false
		}
	}
}

// submit applies a command and answers it, after its commit if the reply shows what the journal does
// not have yet. It never waits for a commit: what needs one, and finds no room in the backlog, is
// refused. observed, which may be nil, is called with the reply when it may leave.
func (l *link) submit(to address, command statestore.Command, observed func(statestore.Reply)) {
	if l.store.options.Journal == nil {
		reply, _ := l.store.clients.submit(command, observed)
		l.answer(to, reply)
		return
	}
	if reply, ok := l.store.clients.trySubmit(command, observed); ok {
		l.answerBehind(to, command.Key, reply)
		return
	}
	waiting := &waitingReply{address: to, bytes: to.room()}
	if command.Verb != statestore.VerbGet && command.Verb != statestore.VerbKeyNotify {
		waiting.change = changeOverhead + int64(len(command.Key)+len(command.Value))
	}
	if !l.store.backlog.take(to.client, waiting.change, waiting.bytes) {
		l.refuse(to)
		return
	}
	l.replies.promise()
	reply, now := l.store.clients.submit(command, func(reply statestore.Reply) {
		if observed != nil {
			observed(reply)
		}
		waiting.reply = reply
		l.replies.added(waiting)
	})
	if now && reply.Outcome == statestore.Expired {
		l.replies.cancel(waiting)
		l.store.drop(to.client, DroppedExpired)
		return
	}
	if value := envelope.ValueCost(command.Key, &reply); value > 0 {
		if l.store.backlog.grow(to.client, value) {
			waiting.bytes += value
		} else {
			waiting.refused = true
			l.refuse(to)
		}
	}
	l.replies.added(waiting)
}

// answerBehind answers a request with a reply that may leave at once, behind replies to the
// same client that wait to be sent. If there is no room to wait, the reply overtakes them.
func (l *link) answerBehind(to address, key string, reply statestore.Reply) {
	bytes := to.room() + envelope.ValueCost(key, &reply)
	if reply.Outcome == statestore.Expired || !l.store.backlog.takeBehind(to.client, bytes) {
		l.answer(to, reply)
		return
	}
	waiting := &waitingReply{address: to, bytes: bytes, reply: reply}
	waiting.parts.Store(1)
	l.replies.promise()
	l.replies.added(waiting)
}

// answer answers a request at once, or drops it.
func (l *link) answer(to address, reply statestore.Reply) {
	if reply.Outcome == statestore.Expired {
		l.store.drop(to.client, DroppedExpired)
		return
	}
	l.store.count(func(stats *Stats) { stats.Requests++ })
	l.reply(to, reply)
}

// sendReplies sends the replies whose commits are over, until the connection ends. A store that has
// yielded to another one no longer answers.
func (l *link) sendReplies() {
	forEach(l.ctx, l.replies.wake, l.replies.next, func(waiting *waitingReply) {
		if !l.hasYielded() {
			l.store.count(func(stats *Stats) { stats.Requests++ })
			l.reply(waiting.address, waiting.reply)
		}
		l.replies.sent(waiting)
	})
}
