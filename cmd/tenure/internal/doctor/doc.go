// Package doctor finds out why a client cannot use a state store. It goes the way of a request, step by
// step: the name in DNS, TCP, TLS, MQTT 5, the credentials, the store, its identity, the clocks, the
// round-trip times, and the rights of the client. Each failure has its cure.
//
// It connects by itself, and not with package transport, so that each step has a result of its own.
// It does no harm: its keys are below a prefix of its own, expire within a minute, and are removed;
// with ReadOnly it sets none.
package doctor
