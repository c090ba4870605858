package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tenurelock/tenure/server/activity"
)

// maxAnswers bounds how many clients read /api/state at once: each may hold an answer of its own for
// as long as it reads slowly.
const maxAnswers = 8

// view is what the page, the probes and the metrics have in common: what they show.
type view struct {
	options Options
	started time.Time // the process
}

// State is what the page shows, as JSON has it: what the store has, and what this process is.
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
	state := State{State: activity.NewState(), Node: status, Commit: about.Commit, Values: about.Values}
	if store.State != nil {
		state.State = store.State()
	}
	state.At = now
	state.Info = activity.Info{
		Mode: about.Mode, Role: string(status.Role), Active: status.Active, Version: about.Version,
		Identity: store.Identity, Address: status.address, Data: status.data, Started: v.started,
	}
	if !about.Values {
		for i := range state.Leases {
			state.Leases[i].Value = ""
		}
	}
	return state, store
}

// read returns what the page shows at a time. Its answer is the state as JSON. Its event is the same
// without what changes only because time passes: the page finds that from the deadlines. So two
// events are equal if nothing happened between them.
func (v *view) read(now time.Time, forms form) (*reading, error) {
	state, store := v.at(now)
	r := &reading{now: now, state: state, store: store}
	var err error
	if forms&asAnswer != 0 {
		if r.answer, err = encode(state); err != nil {
			return nil, err
		}
	}
	if forms&asEvent != 0 {
		if r.event, err = encode(timeless(state)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// timeless returns a state without what time alone changes. It does not change the one that it gets.
func timeless(state State) State {
	state.At = time.Time{}
	state.Leases = slices.Clone(state.Leases)
	for i := range state.Leases {
		lease := &state.Leases[i]
		lease.LeftMillis, lease.NoHolderMillis = 0, 0
		if last := lease.LastChange; last != nil && last.Began.IsZero() {
			open := *last
			open.GapMillis = 0
			lease.LastChange = &open
		}
	}
	state.Timeline = slices.Clone(state.Timeline)
	for i := range state.Timeline {
		if entry := &state.Timeline[i]; entry.Began.IsZero() {
			entry.GapMillis = 0
		}
	}
	return state
}

// encode returns a value as JSON on one line. No answer is HTML, so < and > stay as they are, which
// would take six times the bytes.
func encode(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// answers serves /api/state.
type answers struct {
	readings *readings
	places   chan struct{} // one entry for each answer that is made or written
}

func newAnswers(readings *readings) *answers {
	return &answers{readings: readings, places: make(chan struct{}, maxAnswers)}
}

// ServeHTTP implements http.Handler.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case a.places <- struct{}{}:
	default:
		refuseReader(w, fmt.Sprintf("%d clients read /api/state already; ask again", maxAnswers))
		return
	}
	defer func() { <-a.places }()
	protect(r)
	reading, err := a.readings.fresh(r.Context(), asAnswer)
	if err != nil {
		refuseReader(w, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(reading.answer)))
	_, _ = w.Write(reading.answer)
}

// refuseReader refuses a request that may succeed later.
func refuseReader(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, reason, http.StatusServiceUnavailable)
}
