package mqtt

import "fmt"

// Reason codes for what is wrong with a packet, and for a server that refers to another one
// [MQTT-2.4].
const (
	Malformed            = 0x81 // the packet cannot be parsed
	ProtocolError        = 0x82 // it can be parsed, and is not allowed
	UnsupportedVersion   = 0x84
	InvalidClientID      = 0x85
	BadAuthentication    = 0x8c // bad authentication method
	InvalidFilter        = 0x8f
	InvalidTopic         = 0x90
	InvalidAlias         = 0x94
	PacketTooLarge       = 0x95
	QuotaExceeded        = 0x97
	InvalidPayloadFormat = 0x99
	UseAnotherServer     = 0x9c
)

// Refusal is the error for a packet that breaks a rule of MQTT or a limit of the receiver.
// The receiver ends the connection.
type Refusal struct {
	// Code is the MQTT 5 reason code, for a DISCONNECT or a CONNACK.
	Code byte
	// Reason says in words what is wrong. It contains no text from the packet, only numbers.
	Reason string
}

// Error returns the reason and the code.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (MQTT reason code 0x%02X)", r.Reason, r.Code)
}

// Refuse returns a Refusal with a reason that it formats like fmt.Sprintf.
func Refuse(code byte, format string, values ...any) *Refusal {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, values...)}
}
