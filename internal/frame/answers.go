package frame

import "github.com/tenurelock/tenure/internal/wire"

// AppendDisconnect appends a DISCONNECT of MQTT 5 with a reason code, and with a reason in
// words unless that is empty.
func AppendDisconnect(dst []byte, code byte, reason string) []byte {
	return appendReason(append(dst, wire.Disconnect<<4), []byte{code}, reason)
}

// AppendConnack appends a CONNACK that refuses the connection, to a client of any version
// of MQTT. The reason in words is for MQTT 5 only. It appends nothing for a reason code
// that an earlier version cannot express: there, such a connection just ends
// [MQTT 3.1.1, 4.8].
func AppendConnack(dst []byte, version, code byte, reason string) []byte {
	if version >= wire.Version5 {
		return appendReason(append(dst, wire.Connack<<4), []byte{0, code}, reason)
	}
	switch code {
	case wire.UnsupportedVersion:
		code = 1
	case wire.InvalidClientID:
		code = 2
	default:
		return dst
	}
	return append(dst, wire.Connack<<4, 2, 0, code)
}

// maxReason is how much of a reason is written.
const maxReason = 256

// appendReason appends the rest of a packet that ends with a Reason String as its only
// property.
func appendReason(dst, head []byte, reason string) []byte {
	reason = reason[:min(len(reason), maxReason)]
	properties := optional(len(reason))
	dst = wire.AppendVariable(dst, len(head)+variableLength(properties)+properties)
	dst = append(dst, head...)
	dst = wire.AppendVariable(dst, properties)
	if reason == "" {
		return dst
	}
	return appendString(append(dst, wire.ReasonString), reason)
}
