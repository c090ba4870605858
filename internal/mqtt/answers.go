package mqtt

import (
	"encoding/binary"

	"github.com/eclipse/paho.golang/packets"
)

// AppendDisconnect appends a DISCONNECT of MQTT 5 with a reason code, and with a reason in
// words unless that is empty.
func AppendDisconnect(dst []byte, code byte, reason string) []byte {
	return appendReason(append(dst, packets.DISCONNECT<<4), []byte{code}, reason)
}

// AppendConnack appends a CONNACK that refuses the connection of a client with any version of
// MQTT. Only MQTT 5 gets the reason in words. It appends nothing for a reason code that an
// earlier version does not have: the server then only closes the connection [MQTT 3.1.1,
// 4.8].
func AppendConnack(dst []byte, version, code byte, reason string) []byte {
	if version >= Version5 {
		return appendReason(append(dst, packets.CONNACK<<4), []byte{0, code}, reason)
	}
	switch code {
	case UnsupportedVersion:
		code = 1
	case InvalidClientID:
		code = 2
	case UseAnotherServer:
		code = 3 // the server is unavailable
	default:
		return dst
	}
	return append(dst, packets.CONNACK<<4, 2, 0, code)
}

// AppendReferral appends a CONNACK that sends a client with any version of MQTT to another
// server. Only MQTT 5 gets the reason in words and the Server Reference, unless they are empty;
// earlier versions are told that the server is unavailable. The reference has at most 65,535
// bytes.
func AppendReferral(dst []byte, version byte, reference, reason string) []byte {
	if version < Version5 {
		return AppendConnack(dst, version, UseAnotherServer, "")
	}
	return appendTexts(append(dst, packets.CONNACK<<4), []byte{0, UseAnotherServer}, reason, reference)
}

// maxReason is the largest length of a reason in bytes; longer ones are cut.
const maxReason = 256

// appendReason appends the rest of a packet with a Reason String as its only property.
func appendReason(dst, head []byte, reason string) []byte {
	return appendTexts(dst, head, reason, "")
}

// appendTexts appends the rest of a packet whose only properties are a Reason String and a
// Server Reference, unless they are empty.
func appendTexts(dst, head []byte, reason, reference string) []byte {
	reason = reason[:min(len(reason), maxReason)]
	properties := optional(len(reason)) + optional(len(reference))
	dst = AppendVariable(dst, len(head)+variableLength(properties)+properties)
	dst = append(dst, head...)
	dst = AppendVariable(dst, properties)
	if reason != "" {
		dst = appendString(append(dst, packets.PropReasonString), reason)
	}
	if reference != "" {
		dst = appendString(append(dst, packets.PropServerReference), reference)
	}
	return dst
}

// AppendPubackReason appends a PUBACK of MQTT 5 with a reason code, and with a reason in words
// unless that is empty.
func AppendPubackReason(dst []byte, packetID uint16, code byte, reason string) []byte {
	head := binary.BigEndian.AppendUint16(make([]byte, 0, 3), packetID)
	return appendReason(append(dst, packets.PUBACK<<4), append(head, code), reason)
}

// AppendSuback appends a SUBACK, with a reason code for each topic filter: before MQTT 5, the
// granted QoS or 0x80.
func AppendSuback(dst []byte, version byte, packetID uint16, codes []byte) []byte {
	return appendCodes(append(dst, packets.SUBACK<<4), version, packetID, codes)
}

// AppendUnsuback appends an UNSUBACK. Only MQTT 5 gets the codes, one for each topic filter.
func AppendUnsuback(dst []byte, version byte, packetID uint16, codes []byte) []byte {
	if version < Version5 {
		codes = nil
	}
	return appendCodes(append(dst, packets.UNSUBACK<<4), version, packetID, codes)
}

func appendCodes(dst []byte, version byte, packetID uint16, codes []byte) []byte {
	head := binary.BigEndian.AppendUint16(nil, packetID)
	if version >= Version5 {
		head = append(head, 0) // no properties
	}
	dst = AppendVariable(dst, len(head)+len(codes))
	return append(append(dst, head...), codes...)
}
