// Package pubsub delivers MQTT messages from publishers to subscribers. It has the subscriptions, and
// the messages that wait for each client. It has no sockets and reads no packets: the server checks
// packets and calls it.
//
// # Calls
//
//	session := broker.NewSession(client, mayRead) // CONNECT
//	session.Attach(receiver)              // after CONNACK
//	session.Subscribe, .Unsubscribe       // SUBSCRIBE and UNSUBSCRIBE, for each filter
//	broker.Publish(message, pause)        // PUBLISH and Wills, before PUBACK
//	session.Acknowledge(packetID)         // PUBACK
//	session.Append(buffer, enough)        // the goroutine that writes, after Receiver.Wake
//	session.Detach()                      // the connection is over
//	session.Sweep(now)                    // now and then, to free expired messages
//	session.End()                         // the session is over
//
// All methods are safe for concurrent use, except that only one goroutine may call Append. No method waits for a
// socket or a subscriber. The package starts no goroutines.
//
// # What it promises
//
// A message goes to each client once, however many of its filters match, with the highest
// QoS among them [MQTT-3.3.4-2]. Messages of one publisher to one
// topic keep their order [MQTT-4.6.0]. A message of QoS 1 waits for its acknowledgement, and is sent
// again, in the same order, on the next connection.
//
// Everything that waits is counted in bytes, and has a bound (see [New]). A message beyond a
// bound is dropped for that one subscriber and counted (see [Broker.Dropped]); neither the publisher
// nor any other subscriber is affected. Sessions that do not read cannot take what all others need, however many
// they are.
//
// # Locks
//
// Session.mu guards a session, and Broker.filters all subscriptions; the former may be taken under the latter.
// Broker.mu, for the counters, may be taken under both. A search releases its lock every few hundred
// steps, so that a long search does not delay others. No lock is held while a message is encoded or a
// function of the caller is called.
package pubsub
