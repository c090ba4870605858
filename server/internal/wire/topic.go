package wire

import (
	"bytes"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// CheckFilter returns what is wrong with a topic filter, or nil: it is empty, its
// wildcards are not whole levels, # is not the last of them, or it is over a limit.
func CheckFilter(filter []byte, limits *mqtt.Limits) *mqtt.Refusal {
	if len(filter) == 0 {
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter is empty") // [MQTT-4.7.3-1]
	}
	if mqtt.Over(len(filter), limits.TopicLength) {
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter has %d bytes, and at most %d are accepted", len(filter), limits.TopicLength)
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
