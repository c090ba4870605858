package mqtt

import (
	"bytes"
	"errors"
	"fmt"
)

// Reason codes of CONNACK, PUBACK, SUBACK, UNSUBACK and DISCONNECT [MQTT-2.4].
const (
	Success               = 0x00
	NoMatchingSubscribers = 0x10
	NoSubscription        = 0x11
	Failure               = 0x80 // without a better reason; all below mean success
	Malformed             = 0x81 // the packet cannot be parsed
	ProtocolError         = 0x82 // it can be parsed, and is not allowed
	ImplementationError   = 0x83 // this receiver does not accept it
	UnsupportedVersion    = 0x84
	InvalidClientID       = 0x85
	BadCredentials        = 0x86
	NotAuthorized         = 0x87
	ServerBusy            = 0x89
	ShuttingDown          = 0x8b
	BadAuthentication     = 0x8c // bad authentication method
	TakenOver             = 0x8e
	InvalidFilter         = 0x8f
	InvalidTopic          = 0x90
	UnknownPacketID       = 0x92
	InvalidAlias          = 0x94
	PacketTooLarge        = 0x95
	QuotaExceeded         = 0x97
	InvalidPayloadFormat  = 0x99
	RetainNotSupported    = 0x9a
	QoSNotSupported       = 0x9b
	UseAnotherServer      = 0x9c
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

// Short returns the reason, cut to what fits into a small packet.
func (r *Refusal) Short() string { return r.Reason[:min(len(r.Reason), maxReason)] }

// maxReason is the largest length in bytes of a reason that is sent.
const maxReason = 256

// Refuse returns a Refusal with a reason that it formats like fmt.Sprintf.
func Refuse(code byte, format string, values ...any) *Refusal {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, values...)}
}

// RefusalIn returns the refusal for an error of a [Gate] or a [Filter], or nil if the error is not about
// a packet.
func RefusalIn(err error) *Refusal {
	var refusal *Refusal
	var tooLarge *TooLargeError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &tooLarge):
		return &Refusal{Code: PacketTooLarge, Reason: tooLarge.Error()}
	case errors.Is(err, ErrHeader):
		return &Refusal{Code: Malformed, Reason: err.Error()}
	}
	return nil
}

// Limits bounds what a packet may contain, below what the standard allows. 0 is no limit.
type Limits struct {
	// TopicLevels and TopicLength bound each topic name and topic filter; the length is in
	// bytes. A name over a limit is refused with 0x90, a filter with 0x8F.
	TopicLevels, TopicLength int
	// UserProperties bounds the user properties of one packet by number, and
	// UserPropertyBytes their names and values together. More are refused with 0x97. The
	// properties of a Will count with the properties of its CONNECT.
	UserProperties, UserPropertyBytes int
}

// Over reports whether a value is over a limit; 0: there is none.
func Over(value, limit int) bool { return limit > 0 && value > limit }

// CheckTopic returns what is wrong with a topic name, or nil: it is empty, has wildcards
// or is over a limit.
func CheckTopic(topic []byte, limits *Limits) *Refusal {
	switch {
	case len(topic) == 0:
		return Refuse(ProtocolError, "a topic name is empty") // [MQTT-4.7.3-1]
	case bytes.IndexByte(topic, '+') >= 0 || bytes.IndexByte(topic, '#') >= 0:
		return Refuse(InvalidTopic, "a topic name has a wildcard") // [MQTT-3.3.2-2]
	case Over(len(topic), limits.TopicLength):
		return Refuse(InvalidTopic, "a topic name has %d bytes, and at most %d are accepted", len(topic), limits.TopicLength)
	case limits.TopicLevels > 0 && bytes.Count(topic, []byte{'/'}) >= limits.TopicLevels:
		return Refuse(InvalidTopic, "a topic name has more than %d levels", limits.TopicLevels)
	}
	return nil
}
