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
// # Who is who
//
// A client has its own topics below clients/, under its client id or the upper-case
// hex of that, and nobody else's; only the store speaks below clients/statestore.
// Package access decides who may connect (Options.Authenticator) and what they may do
// (Options.Authorizer). With TLS the subject of a client certificate is the user.
//
// # What fails, and how
//
//	a request that …                            is dropped, counted in Stats, logged, and
//	has not QoS 1, is retained, names no        refused in its PUBACK, with the reason; QoS 0 has no
//	response topic, has no correlation data     PUBACK, QoS 2 ends the connection (0x9B)
//	wants its reply on a topic of another       refused in its PUBACK (0x87)
//	wants its reply where the store speaks      answered with a DISCONNECT (0x87)
//	comes over MQTT 3.1.1                       answered by closing the connection
//	has a message expiry that passed            refused in its PUBACK
//
// A Will is refused at CONNECT where its client may not publish.
//
// # What it does not do
//
// The store is in memory: a restart begins empty, and a redelivery from before is new.
// The message expiry counts from when the server read a request: how long it lay in
// the buffers of a stopped machine nobody knows.
//
// # Who runs what
//
// The embedded broker has two goroutines for each connection: one reads, and
// calls our hooks; one writes what others publish. A request is applied and
// answered by the goroutine that read it, so a client that does not read its
// replies delays nobody but itself. Notifications go through a queue for each
// connection (outbox) and a third goroutine, started by the first KEYNOTIFY. One
// goroutine removes keys as they expire. Serve starts all of them and returns
// when they have ended.
package server
