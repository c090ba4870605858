// Package frame reads and writes the few MQTT 5 packets of which a request and its
// reply consist, PUBLISH and PUBACK, without allocating, and takes them out of the
// stream of a connection.
//
// Both ends of a connection have a complete MQTT implementation: paho in package
// transport, mochi in package server. Most of what a request costs there goes into
// taking packets apart for every use that MQTT knows. A [Filter] sits between the socket
// and that implementation, offers each packet to a function that knows only this one
// use, and passes on, byte for byte, what the function does not take. So the decoder
// here need not understand everything: what is rare, or wrong, it leaves to the one
// behind it, which also decides what is to be done about it.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package frame
