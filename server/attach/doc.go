// Package attach runs the state store as a client of an MQTT 5 broker that is there already,
// where package server brings a broker of its own.
//
//	store, err := attach.New("mqtt://localhost:1883", attach.Options{})
//	…
//	err = store.Serve(ctx) // until ctx ends
//
// Such a store learns the sender of a request from its response topic only, so the broker's rules
// have to keep clients apart; docs/attach.md says which rules these are, and what an attached
// store cannot do. One broker has one store at a time: before a store answers, it makes sure
// that no other one does, and it stops with ErrAnotherStore if one begins to.
//
// # Goroutines
//
// A store has one connection. One goroutine reads it, applies requests, and listens to other stores
// (link.received); it ends a watch when its notification had no subscriber (Store.unread). A second one sends the
// replies (link.sendReplies), and a third the notifications to all clients, in order (link.notify). Store.Serve
// connects, again and again (Store.connect), and waits for all of them.
package attach
