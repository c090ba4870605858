package attach

import (
	"time"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/events"
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

// cost returns how many bytes a reply takes while it waits, without a value.
func (to *address) cost() int64 { return requestOverhead + int64(len(to.topic)+len(to.correlation)) }

// submit applies a command and answers it, after its commit if the reply shows what the journal does
// not have yet. It never waits for a commit: what needs one, and finds no place in the backlog, is
// refused.
func (l *link) submit(to address, command statestore.Command) {
	engine, backlog := l.store.engine, l.store.backlog
	seen, protected := l.store.clients.heard(command.Client, command.Verb == statestore.VerbKeyNotify)
	reply, ok := engine.TrySubmit(command)
	if ok {
		l.store.note(seen, &command, &reply)
		l.answer(to, command.Key, reply)
		return
	}
	bytes := to.cost()
	if command.Verb != statestore.VerbGet && command.Verb != statestore.VerbKeyNotify {
		bytes += int64(len(command.Key) + len(command.Value))
	}
	waiting := &waitingReply{link: l, address: to}
	if !backlog.take(waiting, bytes, protected) {
		l.later(&waitingReply{address: to, bytes: to.cost(), message: l.busy(to)})
		return
	}
	reply, _ = engine.Submit(command, func(reply statestore.Reply) {
		waiting.reply = reply
		backlog.queue.push(waiting)
	})
	l.store.note(seen, &command, &reply)
}

// note notes the reply to a request.
func (s *Store) note(seen *events.Client, command *statestore.Command, reply *statestore.Reply) {
	seen.Answered(command, reply, time.Now())
	s.log.Answered(command, reply, "")
}

// answer answers a request with a reply that may leave at once: behind those that wait to be sent, because
// replies about one key reach a client in the order of the store.
func (l *link) answer(to address, key string, reply statestore.Reply) {
	l.later(&waitingReply{address: to, bytes: to.cost() + envelope.ValueCost(key, &reply), reply: reply})
}

// later queues what may leave at once. While too much waits to be sent, it waits until the broker has taken
// some of it, or the connection has ended: meanwhile the broker is not read.
func (l *link) later(w *waitingReply) {
	w.link, w.bytes = l, min(w.bytes, maxUnsent)
	if l.unsent.Acquire(l.ctx, w.bytes) == nil {
		l.store.backlog.unsent.Add(1)
		l.store.backlog.queue.push(w)
	}
}

// sendReplies sends what waits, until the connection ends. Replies to requests of an earlier connection are
// dropped, and a store that has yielded to another one no longer answers.
func (l *link) sendReplies() {
	backlog := l.store.backlog
	backlog.queue.serve(l.ctx, func(w *waitingReply) {
		switch {
		case w.link != l || closed.Is(l.superseded):
		case w.message != nil:
			l.send(w.message)
		default:
			l.reply(w.address, w.reply)
		}
		backlog.release(w)
	})
	backlog.queue.drain(backlog.release)
}

// reply sends a reply, unless its request had expired, with QoS 0, as server.Server does: neither the store nor the
// broker waits for a client that does not read.
func (l *link) reply(to address, reply statestore.Reply) {
	if reply.Outcome == statestore.Expired {
		l.store.drop(to.client, envelope.DroppedExpired)
		return
	}
	l.store.count(func(stats *Stats) { stats.Requests++ })
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

// busy returns the reply to a request for which the backlog has no place. It says that the outcome is unknown
// rather than that nothing changed: the request may be a redelivery of one that the store has applied.
func (l *link) busy(to address) *mqtt.Message {
	l.store.count(func(stats *Stats) { stats.Busy++ })
	l.store.drops.Log("client", logs.Name(to.client), "reason", storeBusy, "waiting", l.store.engine.Waiting())
	response := l.message(to.client, to.topic, protocol.PropertyStatus, protocol.StatusUnavailable)
	response.User = append(response.User, mqtt.UserProperty{Name: protocol.PropertyStatusMessage, Value: storeBusy})
	response.CorrelationData = to.correlation
	return response
}
