// Package frame reads and writes the MQTT packets of requests and replies, PUBLISH and PUBACK,
// without allocating, and takes them out of the stream of a connection. It also has the
// packets around them that paho v0.23.0 and mochi v2.7.9 cannot write or read as needed.
//
// Both ends of a connection have a complete MQTT library: paho in package transport, mochi
// in package server. Those spend most of the cost of a request on decoding packets for every
// use that MQTT has. A [Filter] reads from the socket and offers each packet to a function
// that knows only requests and replies. The library gets the other packets, byte for byte.
// So the fast decoder can leave rare packets to the library.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package frame
