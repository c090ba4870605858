package attach

import (
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// handle applies a request and answers it, or drops it. It is called for one request at a time, in
// the order in which the broker sent them.
func (l *link) handle(message *mqtt.Publish) {
	to := address{topic: string(message.ResponseTopic), correlation: message.CorrelationData}
	dropped := envelope.Check(message.Retain, message.QoS, to.topic, to.correlation)
	client, known := senderOf(message, to.topic)
	switch {
	case dropped != "":
	case !known:
		dropped = envelope.DroppedForeignTopic
	case len(client) > maxClientID:
		dropped = DroppedLongClient
	}
	if dropped != "" {
		l.store.drop(client, dropped)
		return
	}
	to.client = client
	_, deployed := message.User(protocol.PropertyProtocolVersion)
	request := statestore.Request{
		Client:       client,
		Payload:      message.Payload,
		Correlation:  message.CorrelationData,
		Timestamp:    userProperty(message, protocol.PropertyTimestamp),
		FencingToken: userProperty(message, protocol.PropertyFencingToken),
		Store:        userProperty(message, protocol.PropertyStore),
		Dialect:      statestore.DialectOf(deployed),
		Delivery:     statestore.UnknownDelivery, // the broker does not pass on the DUP of the sender
	}
	if message.Duplicate {
		request.Delivery = statestore.Redelivery // by the broker
	}
	arrived := l.store.engine.Elapsed()
	if message.MessageExpiry > 0 {
		request.Expires = arrived + time.Duration(message.MessageExpiry)*time.Second
	}
	command := statestore.Parse(request)
	if command.Verb == statestore.VerbKeyNotify {
		// Apply it again even if it is a redelivery: its watch may have ended since, and applying
		// it twice does no harm.
		request.Correlation = nil
		command = statestore.Parse(request)
		_, command.Waits = message.User(protocol.PropertyWaiting)
	}
	command.Arrived = arrived
	if forced := userProperty(message, protocol.PropertyForced); forced != nil {
		command.Forced = shown.Cut(*forced)
	}
	l.submit(to, command)
}

// maxClientID bounds the client ids that a store remembers, in bytes: a request may name any.
const maxClientID = 256

// senderOf returns the client that sent a request, by its response topic: clients/{id}/… or
// clients/{upper-case hex of id}/…. The broker does not say which client it is. A client that names
// the topic of another does not get the reply, if the broker has the rules of docs/attach.md.
// The property __srcId, which the broker does not check, only tells which of the two forms it
// is; a contradiction drops the request.
func senderOf(message *mqtt.Publish, responseTopic string) (client string, ok bool) {
	level, _, ok := envelope.SplitClientTopic(responseTopic)
	named, _ := message.User(protocol.PropertySourceID)
	source := string(named)
	switch {
	case !ok:
		return source, false
	case source == "" || source == level:
		return level, true
	}
	return source, level == envelope.HexLevel(source)
}

// userProperty returns the first user property of a name, or nil.
func userProperty(message *mqtt.Publish, name string) *string {
	value, ok := message.User(name)
	if !ok {
		return nil
	}
	text := string(value)
	return &text
}

// message returns a message of the store to a client, with one user property more than all have. The instance is
// another one after the store has ended the client's watches without a word: the client then watches again.
func (l *link) message(client, topic, name, value string) *mqtt.Message {
	_, since := l.store.clients.find(client)
	instance := l.store.instance + "-" + strconv.FormatUint(since, 36)
	return &mqtt.Message{
		Topic:       topic,
		ContentType: protocol.ContentType,
		User: []mqtt.UserProperty{
			{Name: name, Value: value},
			{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
			{Name: protocol.PropertyStore, Value: l.store.engine.Identity()},
			{Name: protocol.PropertyInstance, Value: instance},
		},
	}
}

// maxQueued bounds the notifications that wait for the broker, in bytes.
const maxQueued = 64 << 20

// pendingNotification is a notification that waits for the broker or its acknowledgement.
type pendingNotification struct {
	statestore.Notification
	queued uint64 // when, by clientLRU.count
}

// deliver queues a notification. The engine calls it with its lock held.
func (s *Store) deliver(notification statestore.Notification) {
	cost := envelope.NotificationCost(notification.Change)
	if s.queuedBytes.Add(cost) > maxQueued {
		s.queuedBytes.Add(-cost)
		s.count(func(stats *Stats) { stats.LostNotifications++ })
		return
	}
	s.queue.push(pendingNotification{notification, s.clients.count.Add(1)})
}

// unqueued notes that a notification is no longer in the queue.
func (s *Store) unqueued(notification pendingNotification) {
	s.queuedBytes.Add(-envelope.NotificationCost(notification.Change))
}

// notify sends the queued notifications in order, until the connection ends. It waits for
// acknowledgements only if the broker allows no more messages in flight.
func (l *link) notify() {
	l.store.queue.serve(l.ctx, func(notification pendingNotification) {
		l.store.unqueued(notification)
		topic := protocol.NotifyTopic(notification.Client, notification.Key)
		message := l.message(notification.Client, topic, protocol.PropertyTimestamp, notification.Version.String())
		message.Payload = notification.Append(nil)
		// With QoS 1, so that the broker says whether there is a subscriber.
		err := l.client.PublishAsync(l.ctx, message, func(ack *mqtt.Puback) {
			if ack.ReasonCode == packets.PubackNoMatchingSubscribers {
				l.store.unread(notification)
			}
		})
		if err != nil && l.ctx.Err() == nil {
			l.oversized(message, err)
		}
	})
}

// unread ends the watch of a notification that had no subscriber.
func (s *Store) unread(notification pendingNotification) {
	if s.clients.unread(notification) {
		s.count(func(stats *Stats) { stats.DroppedWatches++ })
		s.options.Logger.Debug("a notification had no subscriber; ended the watch", "client", logs.Name(notification.Client))
	}
}
