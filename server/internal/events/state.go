package events

import (
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// maxShown bounds the leases and the clients of a state.
const maxShown = 1000

// State returns what a store shows.
func State(store *engine.Engine, clients *Clients) activity.State {
	status := store.Status(maxShown)
	state := activity.NewState()
	state.At = time.Now()
	state.Leases = append(state.Leases, status.Leases...)
	state.Timeline = append(state.Timeline, status.Changes...)
	state.Totals.Totals = status.Totals
	state.LeasesHidden = max(0, status.Totals.Held+status.Totals.Free-len(state.Leases))
	clients.show(&state, maxShown)
	for verb := range status.Answers {
		countAnswers(&state.Totals, statestore.Verb(verb).String(), &status.Answers[verb])
	}
	state.Bound()
	return state
}

// countAnswers adds the answers to requests with a verb.
func countAnswers(totals *activity.Totals, verb string, answers *engine.Answers) {
	for outcome, count := range answers.Outcomes {
		if count > 0 {
			totals.Requests += count
			by := activity.RequestCount{Verb: verb, Outcome: statestore.Outcome(outcome).String(), Count: count}
			totals.RequestsBy = append(totals.RequestsBy, by)
		}
	}
	durations := activity.Durations{
		Verb: verb, Count: answers.Timed, Seconds: answers.Took.Seconds(), Buckets: make(map[float64]uint64),
	}
	within := uint64(0)
	for i, count := range answers.Buckets {
		within += count
		durations.Buckets[engine.Buckets[i].Seconds()] = within
	}
	totals.Durations = append(totals.Durations, durations)
}
