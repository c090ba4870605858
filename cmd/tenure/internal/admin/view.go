package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
)

const (
	// maxAnswers and maxScrapes bound how many clients read /api/state and /metrics at once: each may hold
	// an answer of its own for as long as it reads slowly.
	maxAnswers, maxScrapes = 16, 4
	// answerTimeout bounds how long a request waits for a reading.
	answerTimeout = 5 * time.Second
	// readingPause is how long no reading is made after one, as a multiple of the time that it took:
	// whatever clients ask, readings take a tenth of one processor. maxPause bounds the pause, because
	// on a busy machine a reading takes long and costs little.
	readingPause = 9
	maxPause     = time.Second
)

// State is what the page shows, as JSON has it: what the store has, and what this process is.
type State struct {
	activity.State
	Node   Status `json:"node"`
	Commit string `json:"commit,omitempty"`
}

// reading is what the process was at one time. Requests share it, and do not change it.
type reading struct {
	State
	text     []byte        // the state as JSON
	usage    *server.Usage // nil: there is no store
	server   *server.Stats // nil: there is no server
	attached *attach.Stats // nil: there is no attached store
}

// view makes readings, one at a time.
type view struct {
	options Options
	started time.Time // the process
	// probing has space for one probe. One that is stuck keeps its place, so at most one goroutine is lost.
	probing chan struct{}

	turn  chan struct{} // has one entry while a request has what follows
	last  *reading
	until time.Time // no reading begins earlier
}

func newView(options Options) *view {
	return &view{options: options, started: time.Now(), turn: make(chan struct{}, 1), probing: make(chan struct{}, 1)}
}

// read returns a reading that begins now or later. All requests that wait get the same one: ten readers cost as
// much as one. It waits until ctx ends.
func (v *view) read(ctx context.Context) (*reading, error) {
	asked := time.Now()
	select {
	case v.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-v.turn }()
	if v.last != nil && !v.last.At.Before(asked) {
		return v.last, nil
	}
	if !sleep.For(ctx, time.Until(v.until)) {
		return nil, context.Cause(ctx)
	}
	begun := time.Now()
	made, err := v.at(begun)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	v.last, v.until = made, now.Add(min(readingPause*now.Sub(begun), maxPause))
	return made, nil
}

// at makes a reading.
func (v *view) at(now time.Time) (*reading, error) {
	status, store := v.options.Node.status()
	about := v.options.About
	r := &reading{State: State{State: activity.NewState(), Node: status, Commit: about.Commit}}
	if store.State != nil {
		r.State.State = store.State()
	}
	r.usage, r.server, r.attached = store.stats()
	r.At = now
	r.Info = activity.Info{
		Mode: about.Mode, Role: string(status.Role), Active: status.Active, Version: about.Version,
		Identity: store.Identity, Address: status.address, Data: status.data, Started: v.started,
	}
	for i := range r.Leases {
		r.Leases[i].Value = "" // it may be a secret
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // it is no HTML, and an escape takes six times the bytes
	err := encoder.Encode(r.State)
	r.text = text.Bytes()
	return r, err
}

// serveState answers /api/state.
func (v *view) serveState(w http.ResponseWriter, r *http.Request) {
	reading, err := v.read(r.Context())
	if err != nil {
		refuse(w, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(reading.text)))
	_, _ = w.Write(reading.text)
}

// limited returns a handler of as many requests at once as there are places, with a bound for their time.
func limited(places int, next http.HandlerFunc) http.Handler {
	taken := make(chan struct{}, places)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case taken <- struct{}{}:
		default:
			refuse(w, fmt.Sprintf("%d clients read %s already; ask again", places, r.URL.Path))
			return
		}
		defer func() { <-taken }()
		ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
		defer cancel()
		next(w, r.WithContext(ctx))
	})
}

// refuse refuses a request that may succeed later.
func refuse(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, reason, http.StatusServiceUnavailable)
}
