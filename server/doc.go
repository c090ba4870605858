// Package server is a state store behind MQTT 5: an embedded broker with the
// store inside, in one process and on one port.
//
//	s, err := server.New(server.Options{Addr: "127.0.0.1:1883"})
//	…
//	err = s.Serve(ctx) // until ctx ends
//
// Any MQTT 5 client can use it; the state store protocol is answered on its
// system topic, and everything else is an ordinary broker. It knows clients by
// their connections and never by what a message says of its sender.
//
// Where there is a broker already, Attach makes the store a client of it instead. Such a
// store cannot know who asks; docs/attach.md says what follows from that, and what to tell
// the broker. What follows here is about the server with its own broker.
//
// # Who is who
//
// A client has its own topics below clients/, under its client id or the upper-case
// hex of that. It alone subscribes there, and the store answers it there and on no other
// client's topics. Others may publish there, so that applications can answer each
// other, except to
//
//   - the response topics of the store: the recommended one of every client, with all
//     below clients/{id}/services/statestore, at any time; and each that a client has used in
//     a request or in its Will, until its session ends (64 at most: a request that names
//     one more is dropped);
//   - all below clients/statestore, where the store notifies;
//   - what an access.TopicAuthorizer forbids.
//
// Only the store publishes to these, so no client can forge a reply or a notification.
// Nothing below clients/ is retained, and a Will there must be on a topic of its own
// client.
//
// A client whose id is the upper-case hex of the id of another that is connected, or whose
// session is kept, would have topics in common with that, and is refused at CONNECT
// (0x85); so is the other one if it comes second.
//
// A subscription with a wildcard is granted, and delivers what its client may read. A
// shared one, $share/{group}/{filter}, is refused (0x87) unless its client may read all
// that the filter matches: what it may not read would be lost for the other members of the
// group. So is one to topics that begin with $: nothing is published there, and
// Server.Stats has this server's figures.
//
// Package access decides who may connect (Options.Authenticator) and what they may do
// (Options.Authorizer). With TLS the subject of a client certificate is the user.
//
// # What fails, and how
//
//	a request that …                            is dropped, counted in Stats, logged, and
//	has not QoS 1, is retained, names no        refused in its PUBACK, with the reason; QoS 0 has no
//	response topic, has no correlation data     PUBACK, QoS 2 ends the connection (0x9B)
//	wants its reply on a topic of another       refused in its PUBACK (0x87)
//	wants its reply on a 65th topic             refused in its PUBACK (0x97)
//	wants its reply where the store speaks      answered with a DISCONNECT (0x87)
//	comes over MQTT 3.1.1                       answered by closing the connection
//	has a message expiry that passed            refused in its PUBACK
//
// # Wills
//
// A Will is refused at CONNECT where its client may not publish, and dropped if that is so
// when it is due. One on the system topic is a request that its client leaves behind: with
// VDEL it releases a lease the moment the connection of the holder ends. It must be a valid
// request already (MQTT 5, QoS 1, not retained, response topic, correlation data, a
// well-formed command, __ts for a SET) with a Will Delay Interval of 0; otherwise CONNACK
// refuses the connection and names what is missing.
//
// It is applied as the last request of its connection: after all others that the server
// read, before another connection of the same client id is established, and by the same
// rules. So the client's rights, its fencing token and the age of its timestamp are
// judged then and not at CONNECT, a Message Expiry Interval counts from then, and a Will
// with the correlation data of an earlier request of its session and the same content is
// a redelivery, which does nothing: it needs correlation data of its own. The reply goes
// to the response topic, where another client may read it.
//
//	the connection ends by                              the Will is
//	DISCONNECT with reason 0x00                         dropped
//	DISCONNECT with another reason, 0x04 among them     applied
//	a closed socket or the keep-alive running out       applied
//	the server's own decision: a protocol error, a      applied
//	take-over, a client that does not read
//	the end of Serve                                    dropped
//	no CONNACK that could be sent                       dropped
//
// A holder that is cut off believes in its lease until its own deadline. A client that
// leaves such a Will therefore needs a keep-alive that is not shorter than the lease's
// TTL: the server ends a silent connection after one and a half of them.
//
// At the end of Serve the clients are alive, and a lease that was given free would be
// granted to one of those who are sent away next, by a store that is gone a moment later.
// MQTT lets a server that stops keep its Wills back, and ordinary ones are kept back too.
//
// An ordinary Will is published when its connection ends, or when its Will Delay Interval is over
// or the session ends, if the client has not come back before.
//
// # Before authentication
//
// A connection has 5 s from when it was accepted until its client has authenticated. What it
// can cost until then has bounds:
//
//	more than MaxUnauthenticated connections     the oldest without a CONNECT is closed for a
//	(256), or 64 of one remote address           new one, after half a second at the earliest
//	more passwords to compare than               the others wait, in turns by remote address; what an
//	PasswordChecks (half of the processors)      access.QuickAuthenticator knows does not wait
//	more that wait than half of the above        CONNACK 0x89 Server busy; 3 in MQTT 3
//	more sockets than file descriptors, less     the connection is closed; the log names the
//	a reserve of 64                              limit and how to raise it
//
// A client that gives up while its password waits is noticed when its 5 s are over, not
// before: nothing reads its socket meanwhile. A comparison that has begun is not interrupted.
// A client id is taken after authentication.
//
// Connections of one client are established one after the other. One of them waits for that, 5 s
// at most: the latest. The others get CONNACK 0x89 Server busy, or 3 in MQTT 3.
//
// A keep-alive of more than 5 minutes becomes 5 minutes, and none becomes 1; CONNACK says so. A
// client of MQTT 3 cannot be told, and keeps its own, up to 43,690 s.
//
// Warnings that clients can repeat are logged ten times and then once a second, with the
// number of those left out. Names in the log are cut to 64 bytes. Logger must not wait for
// its reader: what it waits for waits with it. "tenure serve" has a bounded queue for that.
//
// # After authentication
//
// What clients can make the server hold is bounded in bytes: see Limits, which Options.MaxMemory
// derives from one number, and Server.Usage. docs/security.md has all bounds in one table, with
// what a client is told that passes one.
//
// A panic while a packet of a client is handled, for example in an Authorizer, ends that
// connection, is logged with its stack, and counted (Stats.Panics). A panic inside the store
// ends the process, for the store may hold half a change.
//
// # What it does not do
//
// The store is in memory: a restart begins empty, and a redelivery from before is new.
// The message expiry counts from when the server read a request: how long it lay in
// the buffers of a stopped machine nobody knows.
//
// # Who runs what
//
// mochi, which has the life of connections and nothing else (docs/adr/0010), has two goroutines
// for each. One reads, through a frame.Filter: the gate checks each packet, and inbound handles
// those that publish and subscribe, in turns (package turns) that no client can keep to
// itself. So a request is applied and answered by the goroutine that read it, and a client
// that does not read its replies delays only itself. The other has nothing to do. A third,
// started when there is something to write, writes what others have for the client: notifications
// (outbox) and messages (package pubsub), a few of them at a time (post). One goroutine removes keys as they expire, one
// ends sessions (expireSessions), and one publishes delayed Wills. Serve starts all of them and
// returns when they have ended.
//
// Locks are taken in this order, and never across I/O: that of the engine, Server.mu, outbox.mu. A
// client id that a connection has taken (Server.names) is no lock: it lasts as long as the connection
// takes to be established. clientIDs.mu is held for a moment, and only mochi's list of clients is read under it. Those of package pubsub are its own: it calls only the outbox with
// one held. connection.writing is held for a write, and only connection.holding is taken under it.
//
// An attached store has one connection. The goroutine of paho that hands out messages
// applies requests, answers them, and listens to other stores (attachedLink.received); a
// second sends the notifications to all clients, in order (attachedLink.notify); the one
// that reads the connection drops the watches whose notifications nobody read
// (attachedSession). Attached.Serve connects, again and again (Attached.connect), and
// waits for all of them.
//
// # Documents
//
// docs/server.md shows how to run it, docs/security.md what it defends against, and docs/design.md
// its goroutines and locks.
package server
