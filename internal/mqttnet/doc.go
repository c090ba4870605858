// Package mqttnet connects to an MQTT broker: it parses the address, dials, adds TLS and
// WebSocket, reads certificates, keys and passwords from files, and checks and bounds each
// packet that arrives. Package transport (the client) and package server/attach (the
// store as a client) use it, so that both connect in the same way.
//
// [Dial] returns a [Conn], which is made for paho v0.23.0: it gathers the many small reads
// and writes of that library, and lets the caller take packets out of the stream
// before the library sees them.
package mqttnet
