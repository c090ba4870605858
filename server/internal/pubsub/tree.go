package pubsub

import (
	"strings"

	"github.com/tenurelock/tenure/internal/shrinkmap"
)

// level is a level of the topic filters of all sessions [MQTT-4.7]. The root is above the first. A search visits
// only levels that match, so no filter costs more than the bytes for which it counts.
type level struct {
	below    shrinkmap.Map[string, *level] // by name; + and # are names too
	sessions shrinkmap.Map[*Session, Subscription]
}

// at calls do with the level at which a filter ends, and drops the levels that are empty then.
func (l *level) at(filter string, do func(*level)) {
	name, rest, more := strings.Cut(filter, "/")
	next := l.below.All[name]
	if next == nil {
		next = new(level)
		l.below.Set(strings.Clone(name), next) // it is a part of a filter that may go before the level
	}
	if more {
		next.at(rest, do)
	} else {
		do(next)
	}
	if len(next.below.All)+len(next.sessions.All) == 0 {
		l.below.Delete(name)
	}
}

// search calls found with the subscriptions of each filter that matches a topic, which may be over: more is false
// then. It calls step for each level, and gives up when that or found reports false. The tree may change in step: then
// the search may find or miss what was added or removed.
func (l *level) search(topic string, more bool, step func() bool, found func(map[*Session]Subscription) bool) (goOn bool) {
	if l == nil {
		return true
	}
	if !step() {
		return false
	}
	if all := l.below.All["#"]; all != nil && !found(all.sessions.All) { // which matches the level above too [MQTT-4.7.1-2]
		return false
	}
	if !more {
		return found(l.sessions.All)
	}
	name, rest, more := strings.Cut(topic, "/")
	return l.below.All[name].search(rest, more, step, found) && l.below.All["+"].search(rest, more, step, found)
}
