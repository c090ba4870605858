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

// observe reports an event that is no request, and has happened now.
func (s *Store) observe(event activity.Event) {
	if s.events.Wanted() {
		event.At, event.Client, event.Key = time.Now(), activity.CutKey(event.Client), activity.CutKey(event.Key)
		s.events.Push(event)
	}
}

// observeGone reports a client whose watches have ended.
func (s *Store) observeGone(client, reason string) {
	s.observe(activity.Event{Kind: activity.Disconnected, Client: client, Reason: reason})
}
