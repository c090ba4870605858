// Package pubsub passes MQTT messages from publishers to subscribers. It has the
// subscriptions, the messages that wait for each client, and the retained messages. It
// knows no sockets and reads no packets: the server checks packets and calls it.
//
// # Who calls what
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
//	broker.Sweep()                        // now and then, to free what expired
//
// All methods may be called at the same time from any goroutine, except that a link must
// have only one goroutine that calls Append. No method waits for a socket or a subscriber.
// The package starts no goroutines.
//
// # What it promises
//
// A message goes to each client once, however many of its filters match, with the highest
// QoS among them and all their identifiers [MQTT-3.3.4-2 to 4]. A shared subscription gives
// it to one of its members, the next one in turn that can take it. It tries some tens of
// them, the connected ones among the next 256 first; if none of these has room, the message is
// dropped for the group. Messages of one publisher to one topic keep their order with
// each QoS [MQTT-4.6.0]. What is QoS 1 waits for the acknowledgement, and is sent again, in
// the same order, on the next connection. The highest QoS is 1: a subscription with QoS 2 is
// one with QoS 1.
//
// Everything that waits is counted in bytes, and has a bound (see [Limits]). What is over a
// bound is dropped for that one subscriber and counted (see [Dropped]); neither the
// publisher nor any other subscriber notices. Of the room for all sessions, a session may
// take at most as much as it leaves free, and a small part in any case. So sessions that do
// not read cannot take the room of all others, however many they are.
//
// # Locks
//
// A session has three locks. changing admits one Subscribe, Unsubscribe or End at a time.
// filters guards its subscriptions, mu its queues. The broker has one lock for the list of
// sessions, one for the tree of all filters, and one for retained messages. They are taken
// in this order, and each is held for a bounded number of steps:
//
//	Session.changing → tree.mu
//	Session.changing → Session.filters
//	Session.mu → retained.mu
//	Broker.mu alone
//
// A search in the tree or in the retained messages gives up the lock after some hundred steps
// and takes it again, so that a search that other clients made long does not
// delay the others that wait for the lock. No lock is held while a message is encoded or while
// Receiver.MayRead is asked. Reserve and Release of a [Link] are called with Session.mu
// held.
package pubsub
