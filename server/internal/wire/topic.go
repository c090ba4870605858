package wire

import (
	"bytes"
	"strings"

	"github.com/tenurelock/tenure/internal/mqtt"
)

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
func CheckFilter(filter []byte, limits *mqtt.Limits) *mqtt.Refusal {
	if len(filter) == 0 {
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter is empty") // [MQTT-4.7.3-1]
	}
	if mqtt.Over(len(filter), limits.TopicLength) {
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter has %d bytes, and at most %d are accepted", len(filter), limits.TopicLength)
	}
	if name, rest, ok := Share(filter); ok {
		if len(name) == 0 || bytes.ContainsAny(name, "+#") {
			return mqtt.Refuse(mqtt.InvalidFilter, "a shared subscription has no name, or one with a wildcard") // [MQTT-4.8.2-1]
		}
		if len(rest) == 0 {
			return mqtt.Refuse(mqtt.InvalidFilter, "a shared subscription has no topic filter") // [MQTT-4.8.2-2]
		}
		filter = rest
	}
	for levels, more := 1, true; more; levels++ {
		if mqtt.Over(levels, limits.TopicLevels) {
			return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter has more than %d levels", limits.TopicLevels)
		}
		var level []byte
		level, filter, more = bytes.Cut(filter, []byte{'/'})
		if len(level) > 1 && bytes.ContainsAny(level, "+#") {
			return mqtt.Refuse(mqtt.InvalidFilter, "a wildcard in a topic filter is not a whole level") // [MQTT-4.7.1-1, MQTT-4.7.1-2]
		}
		if more && len(level) == 1 && level[0] == '#' {
			return mqtt.Refuse(mqtt.InvalidFilter, "# is not the last level of a topic filter") // [MQTT-4.7.1-1]
		}
	}
	return nil
}
