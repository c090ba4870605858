// Package doctor finds out why a client cannot use a state store. It goes the way of a request, step by
// step: the name in DNS, TCP, TLS, MQTT 5, the credentials, the store and its identity, the round-trip times,
// the rights of the client, and the clocks. Each failure has its cure.
//
// It looks at the network and at certificates by itself, and does the rest with package transport. It does
// no harm: its key is below a prefix of its own, expires within a minute, and is removed; with ReadOnly it
// sets none.
package doctor
