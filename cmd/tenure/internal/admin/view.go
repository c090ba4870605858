package admin

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/tenurelock/tenure/server/activity"
)

// view is what the page, the probes and the metrics have in common: what they show.
type view struct{ options Options }

// State is what the page shows, as JSON has it: what happened at the store, and what this process
// is.
type State struct {
	activity.State
	Node   Status `json:"node"`
	Commit string `json:"commit,omitempty"`
	// Values says that values are shown.
	Values bool `json:"values"`
}

// at returns the state at a time, and the store that runs.
func (v *view) at(now time.Time) (State, Store) {
	status, store := v.options.Node.status()
	about := v.options.About
	state := State{State: v.options.Recorder.state(now), Node: status, Commit: about.Commit, Values: about.Values}
	state.Info = activity.Info{
		Mode: about.Mode, Role: string(status.Role), Active: status.Active, Version: about.Version,
		Identity: store.Identity, Address: status.address, Data: status.data, Started: v.options.Recorder.started,
	}
	// Empty lists are lists in JSON too.
	state.Leases, state.Clients = orEmpty(state.Leases), orEmpty(state.Clients)
	state.Timeline, state.StaleWrites = orEmpty(state.Timeline), orEmpty(state.StaleWrites)
	for i := range state.Leases {
		state.Leases[i].Waiting = orEmpty(state.Leases[i].Waiting)
		if !about.Values {
			state.Leases[i].Value = ""
		}
	}
	return state, store
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// render returns the state as JSON without what changes only because time passes: the page finds
// that from the deadlines. So two renderings are equal if nothing happened between them.
func (v *view) render(now time.Time) ([]byte, error) {
	state, _ := v.at(now)
	state.At = time.Time{}
	for i := range state.Leases {
		lease := &state.Leases[i]
		lease.LeftMillis, lease.NoHolderMillis = 0, 0
		if last := lease.LastChange; last != nil && last.Began.IsZero() {
			open := *last
			open.GapMillis = 0
			lease.LastChange = &open
		}
	}
	for i := range state.Timeline {
		if entry := &state.Timeline[i]; entry.Began.IsZero() {
			entry.GapMillis = 0
		}
	}
	return json.Marshal(state)
}

// serveState answers /api/state.
func (v *view) serveState(w http.ResponseWriter, _ *http.Request) {
	state, _ := v.at(time.Now())
	text, err := json.Marshal(state)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n'))
}

// probe takes each lock that a request takes, so it does not return while one is stuck.
func (v *view) probe() {
	_, store := v.at(time.Now())
	if store.Usage != nil {
		store.Usage()
	}
	if store.Server != nil {
		store.Server()
	}
	if store.Attached != nil {
		store.Attached()
	}
}
