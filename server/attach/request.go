package attach

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// handle applies a request and answers it, or drops it. It is called for one request at a time, in
// the order in which the broker sent them.
func (l *link) handle(message *paho.Publish) {
	properties := message.Properties
	if properties == nil {
		properties = new(paho.PublishProperties)
	}
	dropped := envelope.Check(message.Retain, message.QoS, properties.ResponseTopic, properties.CorrelationData)
	client, known := senderOf(properties)
	switch {
	case dropped != "":
	case !known:
		dropped = DroppedForeignTopic
	case len(client) > maxClientID:
		dropped = DroppedLongClient
	}
	if dropped != "" {
		l.store.drop(client, dropped)
		return
	}
	request := statestore.Request{
		Client:       client,
		Payload:      message.Payload,
		Correlation:  properties.CorrelationData,
		Timestamp:    userProperty(properties.User, protocol.PropertyTimestamp),
		FencingToken: userProperty(properties.User, protocol.PropertyFencingToken),
		Store:        userProperty(properties.User, protocol.PropertyStore),
		Dialect:      statestore.DialectOf(userProperty(properties.User, protocol.PropertyProtocolVersion) != nil),
		Delivery:     statestore.UnknownDelivery, // the broker does not pass on the DUP of the sender
	}
	if message.Duplicate() {
		request.Delivery = statestore.Redelivery // by the broker
	}
	if properties.MessageExpiry != nil && *properties.MessageExpiry > 0 {
		request.Expires = l.store.engine.Elapsed() + time.Duration(*properties.MessageExpiry)*time.Second
	}
	start := time.Now()
	command := statestore.Parse(request)
	if command.Verb == statestore.VerbKeyNotify {
		// Apply it again even if it is a redelivery: its watch may have ended since, and applying
		// it twice does no harm.
		request.Correlation = nil
		command = statestore.Parse(request)
	}
	var observed func(statestore.Reply) // nil: nothing takes the event
	if forced := userProperty(properties.User, protocol.PropertyForced); forced != nil || l.store.events.Wanted() {
		observed = l.store.observing(&command, forced, start)
	}
	l.submit(client, properties, command, observed)
}

// maxClientID bounds the client ids that a store remembers, in bytes: a request may name any.
const maxClientID = 256

// senderOf returns the client that sent a request, by its response topic: clients/{id}/… or
// clients/{upper-case hex of id}/…. The broker does not say which client it is. A client that names
// the topic of another does not get the reply, if the broker has the rules of docs/attach.md.
// The property __srcId, which the broker does not check, only tells which of the two forms it
// is; a contradiction drops the request.
func senderOf(properties *paho.PublishProperties) (client string, ok bool) {
	rest, below := strings.CutPrefix(properties.ResponseTopic, envelope.ClientTopics)
	level, _, found := strings.Cut(rest, "/")
	source := properties.User.Get(protocol.PropertySourceID)
	switch {
	case !below || !found || level == "" || envelope.IsBelow(properties.ResponseTopic, envelope.StoreTopics):
		return source, false
	case source == "" || source == level:
		return level, true
	}
	return source, level == envelope.HexLevel(source)
}

// userProperty returns the first user property of a name, or nil.
func userProperty(properties paho.UserProperties, name string) *string {
	for i := range properties {
		if properties[i].Key == name {
			return &properties[i].Value
		}
	}
	return nil
}

// properties returns the properties of each message of the store to a client, with one user property
// more. The instance is another one after the store has ended the client's watches without a word: the
// client then watches again.
func (l *link) properties(client, name, value string) *paho.PublishProperties {
	instance := l.store.instance + "-" + strconv.FormatUint(l.store.clients.since(client), 36)
	return &paho.PublishProperties{
		ContentType: protocol.ContentType,
		User: paho.UserProperties{
			{Key: name, Value: value},
			{Key: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
			{Key: protocol.PropertyStore, Value: l.store.engine.Identity()},
			{Key: protocol.PropertyInstance, Value: instance},
		},
	}
}

// notify sends the queued notifications in order, until the connection ends. It waits for
// acknowledgements only if the broker allows no more messages in flight.
func (l *link) notify() {
	for {
		notification, ok := l.store.queue.take()
		if !ok {
			select {
			case <-l.ctx.Done():
				return
			case <-l.store.queue.wake:
			}
			continue
		}
		message := &paho.Publish{
			QoS:        1, // so that the broker says whether there is a subscriber
			Topic:      protocol.NotifyTopic(notification.Client, notification.Key),
			Payload:    notification.Append(nil),
			Properties: l.properties(notification.Client, protocol.PropertyTimestamp, notification.Version.String()),
		}
		if l.tooLarge(message) {
			continue
		}
		_, err := l.client.PublishWithOptions(context.WithValue(l.ctx, notificationKey{}, notification), message,
			paho.PublishOptions{Method: paho.PublishMethod_AsyncSend})
		if err != nil {
			l.store.logger.Debug("a notification was not sent", "client", logs.Name(notification.Client), "error", logs.Error(err))
		}
		if l.ctx.Err() != nil {
			return
		}
	}
}

// unread ends the watch of a notification that had no subscriber.
func (s *Store) unread(notification pendingNotification) {
	if s.clients.unread(notification) {
		s.count(func(stats *Stats) { stats.DroppedWatches++ })
		s.observeUnread(notification.Client, notification.Key)
		s.logger.Debug("a notification had no subscriber; ended the watch", "client", logs.Name(notification.Client))
	}
}
