// Package wire knows what all MQTT packets are made of: integers, strings, properties,
// topic names and topic filters. It reads them from a buffer, without allocating, and says
// exactly what is wrong with them in a [Refusal]. Package frame reads whole packets with
// it, and package gate judges the packets of a connection.
//
// Everything in it serves MQTT 5.0, and MQTT 3.1.1 and 3.1 as far as those have it.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package wire
