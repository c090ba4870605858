package mqtt

import (
	"bytes"
	"strings"
)

// Limits bounds what a packet may contain, below what the standard allows. 0 is no limit.
type Limits struct {
	// TopicLevels and TopicLength bound each topic name and topic filter; the length is in
	// bytes. A name over a limit is refused with 0x90, a filter with 0x8F.
	TopicLevels, TopicLength int
	// Filters bounds the topic filters in one SUBSCRIBE or UNSUBSCRIBE. More are refused
	// with 0x97.
	Filters int
	// UserProperties bounds the user properties of one packet by number, and
	// UserPropertyBytes their names and values together. More are refused with 0x97. The
	// properties of a Will count with the properties of its CONNECT.
	UserProperties, UserPropertyBytes int
	// FirstPacket bounds the CONNECT, in bytes. A larger one is refused with 0x95.
	FirstPacket int
}

func over(value, limit int) bool { return limit > 0 && value > limit }

// CheckTopic returns what is wrong with a topic name, or nil: it is empty, has wildcards
// or is over a limit.
func CheckTopic(topic []byte, limits *Limits) *Refusal {
	switch {
	case len(topic) == 0:
		return Refuse(ProtocolError, "a topic name is empty") // [MQTT-4.7.3-1]
	case bytes.IndexByte(topic, '+') >= 0 || bytes.IndexByte(topic, '#') >= 0:
		return Refuse(InvalidTopic, "a topic name has a wildcard") // [MQTT-3.3.2-2]
	case over(len(topic), limits.TopicLength):
		return Refuse(InvalidTopic, "a topic name has %d bytes, and at most %d are accepted", len(topic), limits.TopicLength)
	case limits.TopicLevels > 0 && bytes.Count(topic, slash) >= limits.TopicLevels:
		return Refuse(InvalidTopic, "a topic name has more than %d levels", limits.TopicLevels)
	}
	return nil
}

var slash = []byte{'/'}

// sharePrefix begins a shared subscription, in upper or lower case: some brokers, such as
// mochi v2.7.9, accept $SHARE too.
const sharePrefix = "$share"

// Share splits the filter of a shared subscription, $share/{name}/{filter}. It reports false
// for other filters. The parts may be malformed (see CheckFilter).
func Share[T string | []byte](filter T) (name, rest T, ok bool) {
	if len(filter) < len(sharePrefix) || !strings.EqualFold(string(filter[:len(sharePrefix)]), sharePrefix) {
		return name, rest, false
	}
	rest = filter[len(sharePrefix):]
	if len(rest) == 0 {
		return name, rest, true
	}
	if rest[0] != '/' {
		return name, name, false // another level, such as $shared
	}
	rest = rest[1:]
	for i := range len(rest) {
		if rest[i] == '/' {
			return rest[:i], rest[i+1:], true
		}
	}
	return rest, name, true
}

// CheckFilter returns what is wrong with a topic filter, or nil: it is empty, its
// wildcards are not whole levels, # is not the last of them, it is a shared subscription
// without a name or a filter, or it is over a limit.
func CheckFilter(filter []byte, limits *Limits) *Refusal {
	if len(filter) == 0 {
		return Refuse(InvalidFilter, "a topic filter is empty") // [MQTT-4.7.3-1]
	}
	if over(len(filter), limits.TopicLength) {
		return Refuse(InvalidFilter, "a topic filter has %d bytes, and at most %d are accepted", len(filter), limits.TopicLength)
	}
	if name, rest, ok := Share(filter); ok {
		if len(name) == 0 || bytes.ContainsAny(name, "+#") {
			return Refuse(InvalidFilter, "a shared subscription has no name, or one with a wildcard") // [MQTT-4.8.2-1]
		}
		if len(rest) == 0 {
			return Refuse(InvalidFilter, "a shared subscription has no topic filter") // [MQTT-4.8.2-2]
		}
		filter = rest
	}
	for levels, more := 1, true; more; levels++ {
		if over(levels, limits.TopicLevels) {
			return Refuse(InvalidFilter, "a topic filter has more than %d levels", limits.TopicLevels)
		}
		var level []byte
		level, filter, more = bytes.Cut(filter, slash)
		if len(level) > 1 && bytes.ContainsAny(level, "+#") {
			return Refuse(InvalidFilter, "a wildcard in a topic filter is not a whole level") // [MQTT-4.7.1-1, MQTT-4.7.1-2]
		}
		if more && len(level) == 1 && level[0] == '#' {
			return Refuse(InvalidFilter, "# is not the last level of a topic filter") // [MQTT-4.7.1-1]
		}
	}
	return nil
}
