// Package pubsub delivers MQTT messages from publishers to subscribers. It has the subscriptions, and
// the messages that wait for each client. It has no sockets and reads no packets: the server checks
// packets and calls it.
//
// # Calls
//
//	session := broker.Session(client)     // CONNECT
//	session.Attach(receiver)              // after CONNACK
//	session.Subscribe, .Unsubscribe       // SUBSCRIBE and UNSUBSCRIBE, for each filter
//	broker.Publish(message, pause)        // PUBLISH and Wills, before PUBACK
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
// QoS among them and all their identifiers [MQTT-3.3.4-2 to 4]. Messages of one publisher to one
// topic keep their order [MQTT-4.6.0]. A message of QoS 1 waits for its acknowledgement, and is sent
// again, in the same order, on the next connection. The highest QoS is 1: a subscription with QoS 2 is
// one with QoS 1.
//
// Everything that waits is counted in bytes, and has a bound (see [Limits]). A message beyond a
// bound is dropped for that one subscriber and counted (see [Dropped]); neither the publisher
// nor any other subscriber is affected. Of the bytes for all sessions, a session may take at
// most as much as is left for all others, and a small part in any case. So sessions that do not read
// cannot take what all others need, however many they are.
//
// # Locks
//
// Session.mu guards a session, and Broker.filters the index of all subscriptions, which may be taken under
// it. Broker.mu, for the list of sessions, is taken alone. A search in the index releases its lock every few hundred
// steps, so that a long search does not delay others. No lock is held while a message is encoded or
// Receiver.MayRead is called.
package pubsub
