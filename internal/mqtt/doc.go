// Package mqtt has what this project needs of MQTT beyond paho: PUBLISH and PUBACK without allocations,
// the checks of each packet before it is used, and one connection to a broker. The client, the
// attached store and the server use it, so all of them read, write, refuse and connect alike. What only a
// server needs is in server/internal/wire.
//
//   - [Filter] divides the stream of a connection into packets, each complete and within its bound.
//   - [Gate] checks each of them byte for byte, with [Reader] and [Properties], which do not allocate.
//     If a packet is wrong, a [Refusal] says exactly how.
//   - [Publish], [Puback] and [Message] are the packets of requests and replies. paho's codec
//     (v0.23.0) would take most of the time of a request.
//   - [Dial] returns a [Client], from an address, with TLS and the WebSocket of the program: CONNECT,
//     SUBSCRIBE, messages with QoS 1, keep-alive, acknowledgements and the end of a connection. paho's codec
//     encodes and decodes most of these packets. paho's Client is not used: it has three goroutines and 6 KB of
//     state for each connection, for sessions, QoS 2 and routes.
//
// # The gate
//
// MQTT libraries such as paho v0.23.0 and mochi v2.7.9 were written for well-behaved peers: some short
// packets make them read beyond a buffer, allocate gigabytes or end the process. A Gate lets through only
// packets that follow the standard byte for byte, in an order that it allows, and within [Limits], so
// none of that can happen. It does not decide what a client may do, nor what the server
// supports.
//
// Every refusal ends the connection, even where the standard allows an answer with a reason
// code in a PUBACK or SUBACK: a peer that sends wrong or unreasonable packets will send more
// of them. If the standard names a reason code, the Gate uses that. Otherwise:
//
//	0x81 malformed packet     lengths, strings, flags, properties that the packet cannot have
//	0x82 protocol error       values and packets that are well-formed, and not allowed
//	0x84 unsupported version  another protocol than MQTT 5
//	0x8C authentication       a CONNECT with an authentication method: the server has none
//	0x8F filter invalid       wildcards in the wrong place; over a limit
//	0x90 topic name invalid   a topic name with wildcards; over a limit
//	0x94 topic alias          any: neither client nor server allows one
//	0x95 packet too large     a first packet over its limit
//	0x97 quota exceeded       too many filters or user properties in a packet
//	0x99 payload format       a payload or Will that is marked as UTF-8, and is not
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package mqtt
