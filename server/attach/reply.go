package attach

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

// replyTooLarge replaces a reply that is larger than the broker takes. It is not one of the refusals
// of the protocol: clients get its text.
const replyTooLarge protocol.Refusal = "the reply is larger than the broker takes"

// reply sends a reply with QoS 0, as server.Server does: neither the store nor the broker waits
// for a client that does not read.
func (l *link) reply(topic string, correlation []byte, reply statestore.Reply) {
	if l.send(l.response(topic, correlation, reply)) || reply.Outcome != statestore.Found {
		return
	}
	// Only a value makes a reply large. Tell the client, so that it need not wait for nothing.
	l.send(l.response(topic, correlation, statestore.Reply{Verb: reply.Verb, Err: replyTooLarge}))
}

func (l *link) response(topic string, correlation []byte, reply statestore.Reply) *paho.Publish {
	response := &paho.Publish{
		Topic:      topic,
		Payload:    reply.Append(nil, l.store.options.Dialect),
		Properties: l.properties(protocol.PropertyStatus, protocol.StatusOK),
	}
	response.Properties.CorrelationData = correlation
	if !reply.Version.IsZero() {
		response.Properties.User.Add(protocol.PropertyTimestamp, reply.Version.String())
	}
	return response
}

// waitingReply is a reply that waits for a commit, since it shows a change that the journal does not
// have yet. The goroutine that has the request and the engine's add their parts, in any order.
type waitingReply struct {
	topic       string
	correlation []byte
	room        int64            // bytes, see replyQueue
	reply       statestore.Reply // of the engine's goroutine
	parts       atomic.Int32     // how many of the two goroutines have added their part
}

const (
	// maxReplies and maxReplyBytes bound the replies of one connection that wait for a commit or to be
	// sent. Beyond them the store takes no more requests from the broker.
	maxReplies    = 1 << 14
	maxReplyBytes = 64 << 20
	// replyOverhead is what a reply costs besides its texts while it waits, in bytes.
	replyOverhead = 512
)

// replyQueue is the queue of the replies of one connection that had to wait for a commit. It is safe
// for concurrent use.
type replyQueue struct {
	ended <-chan struct{} // closed with the connection
	wake  chan struct{}   // has an item after a reply was queued
	room  chan struct{}   // has an item after room was given back

	mu       sync.Mutex
	queue    []*waitingReply // whose commits are over
	unsent   int             // those, and the one that is being sent
	promised int             // all: those, and those that wait for a commit
	bytes    int64           // of all
}

func newReplyQueue(ended <-chan struct{}) *replyQueue {
	return &replyQueue{ended: ended, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// take takes room for one more reply. It waits for it, and reports false if the connection ends
// before.
func (q *replyQueue) take(bytes int64) bool {
	return q.waitFor(func() bool {
		if q.promised >= maxReplies || q.promised > 0 && q.bytes+bytes > maxReplyBytes {
			return false
		}
		q.promised++
		q.bytes += bytes
		return true
	})
}

// grow takes more room for a reply that has some, like take.
func (q *replyQueue) grow(bytes int64) bool {
	return q.waitFor(func() bool {
		if q.promised > 1 && q.bytes+bytes > maxReplyBytes {
			return false
		}
		q.bytes += bytes
		return true
	})
}

// waitFor calls try, with mu locked, until it succeeds, whenever there may be room again. One
// goroutine calls it at a time.
func (q *replyQueue) waitFor(try func() bool) bool {
	for {
		q.mu.Lock()
		done := try()
		q.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-q.room:
		case <-q.ended:
			return false
		}
	}
}

// giveBack gives back the room of a reply that is sent, or need not wait.
func (q *replyQueue) giveBack(bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveBackLocked(bytes)
}

func (q *replyQueue) giveBackLocked(bytes int64) {
	q.promised--
	q.bytes -= bytes
	signalOne(q.room)
}

// unsentNone reports whether no reply waits to be sent whose commit is over. Otherwise a later reply
// must wait behind it.
func (q *replyQueue) unsentNone() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.unsent == 0
}

// added notes that a part of a reply is complete, and queues the reply if both are.
func (q *replyQueue) added(w *waitingReply) {
	if w.parts.Add(1) == 2 {
		q.push(w)
	}
}

// push queues a reply that may leave now.
func (q *replyQueue) push(w *waitingReply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, w)
	q.unsent++
	signalOne(q.wake)
}

// next returns the next reply to send, or nil.
func (q *replyQueue) next() *waitingReply {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.queue = nil
		return nil
	}
	first := q.queue[0]
	q.queue[0] = nil
	q.queue = q.queue[1:]
	return first
}

// sent gives back the room of a reply that next has returned.
func (q *replyQueue) sent(w *waitingReply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unsent--
	q.giveBackLocked(w.room)
}

// flush waits until no reply waits, neither for a commit nor to be sent. It reports false if ctx or
// the connection ends before. No request may come meanwhile.
func (q *replyQueue) flush(ctx context.Context) bool {
	for {
		q.mu.Lock()
		left := q.promised
		q.mu.Unlock()
		if left == 0 {
			return true
		}
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		case <-q.ended:
			return false
		}
	}
}

// submit applies a command and answers it, after its commit if the reply shows what the journal does
// not have yet. It waits only while too much waits already.
func (l *link) submit(client string, request *paho.PublishProperties, command statestore.Command) {
	if l.store.options.Journal == nil {
		reply, _ := l.store.clients.submit(command, nil)
		l.answer(client, request, reply)
		return
	}
	waiting := &waitingReply{
		topic:       request.ResponseTopic,
		correlation: request.CorrelationData, // paho has read each message into bytes of its own
		room:        replyOverhead + int64(len(request.ResponseTopic)+len(request.CorrelationData)),
	}
	if !l.replies.take(waiting.room) || l.store.engine.Room(l.ctx) != nil {
		return // the connection or the store has ended
	}
	reply, now := l.store.clients.submit(command, func(reply statestore.Reply) {
		waiting.reply = reply
		l.replies.added(waiting)
	})
	if now && (reply.Outcome == statestore.Expired || l.replies.unsentNone()) {
		l.replies.giveBack(waiting.room)
		l.answer(client, request, reply)
		return
	}
	if value := int64(len(reply.Value)); value > 0 {
		if l.replies.grow(value) {
			waiting.room += value
		}
	}
	if now { // replies about one key leave in the order of the store
		waiting.reply = reply
		l.replies.added(waiting)
	}
	l.replies.added(waiting)
}

// answer answers a request at once, or drops it.
func (l *link) answer(client string, request *paho.PublishProperties, reply statestore.Reply) {
	if reply.Outcome == statestore.Expired {
		l.store.drop(client, DroppedExpired)
		return
	}
	l.store.count(func(stats *Stats) { stats.Requests++ })
	l.reply(request.ResponseTopic, request.CorrelationData, reply)
}

// sendReplies sends the replies whose commits are over, until the connection ends. A store that has
// yielded to another one no longer answers.
func (l *link) sendReplies() {
	for {
		waiting := l.replies.next()
		if waiting == nil {
			select {
			case <-l.ctx.Done():
				return
			case <-l.replies.wake:
			}
			continue
		}
		if !l.hasYielded() {
			l.store.count(func(stats *Stats) { stats.Requests++ })
			l.reply(waiting.topic, waiting.correlation, waiting.reply)
		}
		l.replies.sent(waiting)
	}
}
