package pubsub

import (
	"strings"

	"github.com/tenurelock/tenure/server/internal/wire"
)

// cut splits off the first level of the rest of a topic or filter, and reports whether another
// level follows.
func cut(rest string) (level, tail string, more bool) { return strings.Cut(rest, "/") }

// isWildcard reports whether a filter has a wildcard.
func isWildcard(filter string) bool { return strings.ContainsAny(filter, "+#") }

// isValid reports whether a filter has wildcards only where they are allowed [MQTT-4.7.1].
func isValid(filter string) bool {
	for rest, more := filter, filter != ""; more; {
		var level string
		if level, rest, more = cut(rest); len(level) > 1 && isWildcard(level) || level == "#" && more {
			return false
		}
	}
	return filter != ""
}

// match reports whether a filter matches a topic [MQTT-4.7]. Neither + nor # at the
// beginning matches a topic that begins with $ [MQTT-4.7.2-1].
func match(filter, topic string) bool {
	if topic != "" && topic[0] == '$' && filter != "" && (filter[0] == '+' || filter[0] == '#') {
		return false
	}
	return matchRest(filter, true, topic, true)
}

// matchRest is match for the rest of a filter and of a topic. If more is false, there is no rest.
func matchRest(filter string, moreFilter bool, topic string, moreTopic bool) bool {
	for moreFilter {
		var want, level string
		want, filter, moreFilter = cut(filter)
		if want == "#" {
			return true // also the level above [MQTT-4.7.1-2]
		}
		if !moreTopic {
			return false
		}
		level, topic, moreTopic = cut(topic)
		if want != "+" && want != level {
			return false
		}
	}
	return !moreTopic
}

// skip returns the rest of a filter after some levels.
func skip(filter string, levels int) (rest string, more bool) {
	rest, more = filter, true
	for range levels {
		_, rest, more = cut(rest)
	}
	return rest, more
}

// isShared reports whether a filter has the form of a shared subscription.
func isShared(filter string) bool {
	_, _, shared := wire.Share(filter)
	return shared
}

// divide returns the group and the filter of a shared subscription, or the filter as it is
// and no group. It reports false if a group or a filter is missing [MQTT-4.8.2].
func divide(filter string) (group, plain string, ok bool) {
	group, plain, shared := wire.Share(filter)
	if !shared {
		return "", filter, isValid(filter)
	}
	return group, plain, group != "" && !isWildcard(group) && isValid(plain)
}

// key is the name that a filter has in its session. The case of $share makes no difference.
func key(filter string) string {
	const share = "$share"
	if isShared(filter) && !strings.HasPrefix(filter, share) {
		return share + filter[len(share):]
	}
	return filter
}
