// Package pubsub delivers MQTT messages from publishers to subscribers. It has the subscriptions,
// the messages that wait for each client, and the retained messages. It has no sockets and reads
// no packets: the server checks packets and calls it.
//
// # Calls
//
//	session := broker.Session(client)     // CONNECT
//	session.Attach(receiver)              // after CONNACK
//	session.Subscribe, .Unsubscribe       // SUBSCRIBE and UNSUBSCRIBE, for each filter
//	session.SendRetained                  // after SUBACK, for each filter
//	broker.Publish(message)               // PUBLISH and Wills, before PUBACK
//	session.Acknowledge(packetID)         // PUBACK
//	session.Append(link, buffer, enough)  // the goroutine that writes, after Link.Wake
//	session.Detach(link)                  // the connection is over
//	session.End()                         // the session is over
//	broker.Sweep()                        // now and then, to free expired messages
//
// All methods are safe for concurrent use, except that only one goroutine may call Append for a
// link. No method waits for a socket or a subscriber. The package starts no goroutines.
//
// # What it promises
//
// A message goes to each client once, however many of its filters match, with the highest
// QoS among them and all their identifiers [MQTT-3.3.4-2 to 4]. A shared subscription gives
// it to one of its members, the next one in turn that can take it. It tries some tens of
// them, the connected ones among the next 256 first; if none of these has room, the message is
// dropped for the group. Messages of one publisher to one topic keep their order within
// each QoS [MQTT-4.6.0]. A message of QoS 1 waits for its acknowledgement, and is sent again, in
// the same order, on the next connection. The highest QoS is 1: a subscription with QoS 2 is
// one with QoS 1.
//
// Everything that waits is counted in bytes, and has a bound (see [Limits]). A message beyond a
// bound is dropped for that one subscriber and counted (see [Dropped]); neither the publisher
// nor any other subscriber is affected. Of the room for all sessions, a session may take at
// most as much as is left for all others, and a small part in any case. So sessions that do not read
// cannot take the room of all others, however many they are.
//
// # Locks
//
// A session has three locks. changing is held by Subscribe, Unsubscribe and End. filters guards
// the subscriptions, mu the queues. The broker has one lock for the list of sessions, one for
// the tree of all filters, and one for retained messages. They are taken in this order, and
// each is held for a bounded number of steps:
//
//	Session.changing → tree.mu
//	Session.changing → Session.filters
//	Session.mu → retained.mu
//	Broker.mu alone
//
// A search in the tree or in the retained messages releases its lock after some hundred steps
// and takes it again, so that a long search does not delay others that wait for the lock. No lock is
// held while a message is encoded or Receiver.MayRead is called. Reserve and Release of a [Link]
// are called with Session.mu held.
package pubsub
