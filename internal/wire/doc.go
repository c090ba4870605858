// Package wire reads the parts of MQTT packets: integers, strings, properties, topic names
// and topic filters. It reads them from a buffer without allocating. If one is wrong, a
// [Refusal] says exactly how. Package frame reads whole packets with it, and package gate
// checks the packets of a connection.
//
// It supports MQTT 5.0, and those parts of MQTT 3.1.1 and 3.1 that they have in common.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package wire
