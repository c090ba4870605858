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
// # What it does not do
//
// The store is in memory: a restart begins empty. There is no authentication and
// no encryption, so an address beyond the loopback interface is open to the whole
// network. A request that is delivered twice is applied twice; clients of this
// library never send one twice.
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
