// Package frame reads and writes the MQTT packets of requests and replies, PUBLISH and PUBACK,
// without allocating, and takes them out of the stream of a connection. It also has the
// packets around them that paho v0.23.0 and mochi v2.7.9 cannot write or read as needed.
//
// The codecs of both libraries decode packets for every use that MQTT has, which would take most
// of the time of a request. So a [Filter] reads from the socket and offers each packet to a function that
// knows only requests and replies. The other packets, which are rare, go to a library byte for byte:
// to mochi in package server, to paho in package server/attach, and to paho's codec in package
// mqttclient.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package frame
