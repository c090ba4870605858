// Package server is a state store behind MQTT 5: an embedded broker with the store inside, in
// one process and on one port.
//
//	s, err := server.New(server.Options{Addr: "127.0.0.1:1883"})
//	…
//	err = s.Serve(ctx) // until ctx ends
//
// Any MQTT 5 client can use it. It answers the state store protocol on its system topic, and is
// an ordinary broker for everything else. It identifies clients by their connections, never by
// what a message says of its sender.
//
// If there is a broker already, package attach makes the store a client of that broker. Such a
// store cannot verify which client sent a request; docs/attach.md says what follows. The rest of
// this text is about the server with its own broker.
//
// # Topics
//
// Each client has its own topics below clients/, under its client id or the upper-case hex of its
// client id. Only this client can subscribe there, and the store answers it there and on no topic
// of another client. Other clients may publish there, so that applications can answer each other,
// except to
//
//   - the response topics of the store: the recommended one of every client, and all topics
//     below clients/{id}/services/statestore, at any time; and each topic that a client has used
//     in a request or in its Will, until its session ends (at most 64: a request that names
//     another one is dropped);
//   - all topics below clients/statestore, where the store publishes notifications;
//   - topics that an access.TopicAuthorizer forbids.
//
// Only the store publishes to these, so no client can forge a reply or a notification. A Will below clients/
// must be on a topic of its own client.
//
// Two clients would own the same topics if the id of one is the upper-case hex of the id of the
// other. While one of them is connected or has a session, the server refuses the other at
// CONNECT (0x85).
//
// A subscription with a wildcard is granted, and delivers what its client may read. A subscription to
// topics that begin with $ is refused: nothing is published there. There are no retained messages (0x9A), no
// shared subscriptions (0x9E), no subscription identifiers (0xA1) and no QoS 2 (0x9B), as CONNACK announces; and
// no earlier version of MQTT. Replies and notifications reach a client also without a subscription.
// Server.Stats has the figures of this server.
//
// Package access decides which clients may connect (Options.Authenticator) and what they may do
// (Options.Authorizer). With TLS, the subject of a client certificate is the user name.
//
// # What fails, and how
//
//	a request that …                            is dropped, counted in Stats, logged, and
//	is not of QoS 1, is retained, has no        refused in its PUBACK, with the reason; QoS 0 has no
//	response topic or no correlation data       PUBACK, QoS 2 ends the connection (0x9B)
//	wants its reply on another client's topic   refused in its PUBACK (0x87)
//	wants its reply on a 65th topic             refused in its PUBACK (0x97)
//	wants its reply on a topic of the store     answered with a DISCONNECT (0x87)
//	has a message expiry that passed            refused in its PUBACK
//
// # How a connection ends
//
// disconnect.go has each reason, and the one function that ends a connection. The first reason counts; the status
// page, the log and the client get it:
//
//	the client sends DISCONNECT 0x00              nothing is answered, and the Will is dropped
//	the client has opened another connection      DISCONNECT 0x8E, after 50 ms
//	the server stops                              DISCONNECT 0x8B
//	a packet that is malformed or forbidden,      DISCONNECT with the reason, or CONNACK before the
//	or larger than the user may send now          session; logged
//	a notification that does not fit, or a        closed, counted in Stats.SlowReaders, logged
//	write that waits for 5 s
//	a panic                                       closed, counted in Stats.Panics, logged
//	silence, or a packet that is not complete,    closed
//	for one and a half keep-alives
//	too many that have not authenticated          closed, counted in Stats.Refused, logged
//
// # Wills
//
// A Will is refused at CONNECT if its client may not publish it, and dropped if that is so when
// it is due. A Will on the system topic is a request: with VDEL it releases a lease the moment
// its holder disconnects. It must be a valid request at CONNECT (MQTT 5, QoS 1, not retained,
// response topic, correlation data, a well-formed command, __ts for a SET); otherwise CONNACK refuses the
// connection and names what is missing.
//
// It is applied as the last request of its connection: after all others that the server read,
// before another connection of the same client id is established, and by the same rules. So the
// rights of the client, its fencing token and the age of its timestamp are checked then and not
// at CONNECT, and a Message Expiry Interval counts from then. The reply goes to the response topic,
// where another client may read it.
//
//	the connection ends by                              the Will is
//	DISCONNECT with reason 0x00                         dropped
//	DISCONNECT with another reason, such as 0x04        applied
//	a closed socket or the end of the keep-alive        applied
//	the server's own decision: a protocol error, a      applied
//	take-over, a client that does not read
//	the end of Serve, or of the process                 dropped; a Journal has what it
//	                                                    would have released
//	no CONNACK that could be sent                       dropped
//
// A holder that is cut off believes in its lease until its own deadline. So a client with such a
// Will needs a keep-alive that is not shorter than the TTL of the lease: the server ends a
// silent connection after one and a half keep-alives.
//
// When Serve ends, the clients are alive. A lease that was released then would be granted to
// another client that is disconnected next, by a store that forgets it a moment later. But a store
// that starts again on the same journal begins without connections: it removes each key whose latest
// SET a Will (a VDEL of the same value) of the same connection would have undone. MQTT
// allows a server that stops to publish no Wills, and ordinary Wills are not published either.
//
// An ordinary Will is published when its connection ends, too: CONNECT refuses a Will Delay Interval (0x83).
//
// # Before authentication
//
// A connection has 5 s from when it was accepted until its client has authenticated. What it can
// use until then has bounds:
//
//	more than MaxUnauthenticated connections     the oldest without a CONNECT is closed for a
//	(256), or 64 of one remote address           new one, after half a second at the earliest
//	more password checks than half of the        the others wait, in turns by remote address; what an
//	processors                                   access.QuickAuthenticator knows does not wait
//	more that wait than half of the above        CONNACK 0x89 Server busy
//	more sockets than file descriptors, less     the connection is closed; the log names the
//	a reserve of 64                              limit and how to raise it
//
// If a client disconnects while its password waits for a check, the server notices when the 5 s
// are over, and not before: nothing reads the socket meanwhile. A check that has begun is not
// interrupted. A client id is locked after authentication.
//
// Connections of one client are established one after the other. Only the latest of them waits for
// that, at most 5 s. The others get CONNACK 0x89 Server busy.
//
// A keep-alive of more than 5 minutes becomes 5 minutes, and none becomes 1 minute; CONNACK says
// so.
//
// Warnings that clients can repeat are logged ten times and then once a second, with the number
// of lines left out. Names in the log are cut to 64 bytes. Logger must not block: whatever logs
// waits for it. "tenure serve" has a bounded queue for that.
//
// # After authentication
//
// What clients can make the server hold is bounded in bytes; Options.MaxMemory derives the bounds
// from one number, and Server.Usage says what is held. docs/security.md has all bounds in one table, with
// what the server answers beyond each.
//
// A panic while the server handles a packet of a client, for example in an Authorizer, ends that
// connection, is logged with its stack, and counted (Stats.Panics). A panic inside the store
// ends the process, because the store may hold half a change.
//
// # With a journal
//
// With Options.Journal the keys, versions, tokens, fences and remembered replies survive a restart;
// docs/operate.md says what that means for leases. A reply or a notification leaves after its
// change is in the journal (it waits in internal/engine, and comes back in pendingReply.arrived, packet.go), and the
// request is acknowledged (PUBACK) before. Requests that change
// nothing, renewals above all, are answered at once meanwhile. Beyond these bounds the server reads no
// more from a connection until a commit is over:
//
//	replies of a connection that wait            Options.Store.DedupWindow, which is the Receive
//	                                             Maximum, and half of what may wait to be
//	                                             written to it
//	what waits for the journal, in all           8 MiB; a Will waits 5 s, and is dropped then
//
// After a failed commit nothing is answered any more, and Serve returns the error. The clients get
// a DISCONNECT with the reason "server shutting down" (0x8B). The window of remembered replies of a
// client that does not come back within ten minutes of the start is deleted.
//
// # What it does not do
//
// Without Options.Journal the store is in memory: a restart begins empty, and a redelivery from
// before is new. Watches, and sessions with their subscriptions and messages
// are always in memory. The message expiry counts from when the server read a request: the server
// cannot know how long it lay in the buffers of a machine that was stopped.
//
// # Goroutines and locks
//
// A connection has one goroutine, from its CONNECT to its Will (connection.serve, docs/adr/0010). It
// checks each packet (gate, in an mqtt.Filter), and applies and answers it (connection.dispatch), in
// turns (package fairqueue) so that no client can monopolize the processors. Another one, while there is
// something to write that its own requests have not caused, writes replies, notifications (outbox) and messages
// (package pubsub) to the client, in turns too. CONTRIBUTING.md has the order of the
// locks.
//
// Another lock is not in that order: connection.writing is held for a write, and connection.holding and, when a
// write fails, what connection.endWaits takes are taken under it.
package server
