package attach

import (
	"strings"
	"time"

	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// observing makes the event of a request, and returns what the engine calls with the reply when that may
// leave. It is apart from handle so that a request without an observer allocates nothing for it.
func (s *Store) observing(command *statestore.Command, forced *string, now time.Time) func(statestore.Reply) {
	event := s.events.Request(command, now)
	if forced != nil {
		event.Forced = activity.CutText(strings.Clone(*forced))
	}
	return func(reply statestore.Reply) { s.events.Answered(event, reply) }
}

// observeGone reports a client whose watches have ended.
func (s *Store) observeGone(client, reason string) {
	if s.events.Wanted() {
		s.events.Push(activity.Event{Kind: activity.Disconnected, At: time.Now(), Client: activity.CutKey(client), Reason: reason})
	}
}

// observeDrop reports that a request was dropped.
func (s *Store) observeDrop(client string, why DropReason) {
	if s.events.Wanted() {
		s.events.Push(activity.Event{Kind: activity.Dropped, At: time.Now(), Client: activity.CutKey(client), Reason: string(why)})
	}
}

// observeUnread reports that a watch has ended because its client has not subscribed.
func (s *Store) observeUnread(client, key string) {
	if s.events.Wanted() {
		s.events.Push(activity.Event{Kind: activity.Unwatched, At: time.Now(), Client: activity.CutKey(client), Key: activity.CutKey(key)})
	}
}
