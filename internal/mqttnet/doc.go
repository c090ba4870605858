// Package mqttnet connects to an MQTT broker: it parses the address, dials, adds TLS and
// the WebSocket of the program, reads certificates, keys and passwords from files, and checks and bounds each
// packet that arrives. Package transport (the client) and package server/attach (the
// store as a client) use it, so that both connect in the same way.
//
// [Dial] returns a [Conn]. Package mqttclient reads from it for package transport, and paho v0.23.0
// for server/attach. It gathers the many small reads and writes of paho, whose codec both use, and
// offers each packet to an [Interceptor] before either sees it.
package mqttnet
