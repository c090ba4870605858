package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// maxVerb is the last verb of the protocol.
const maxVerb = statestore.VerbKeyNotify

// Recorder takes the events of a store, for the page and for the metrics. It outlives the stores of
// a process that stands by and serves in turns. Its methods may be called from several goroutines at
// once.
type Recorder struct {
	model    *activity.Model
	state    func(now time.Time) activity.State // of model; a test has another
	started  time.Time
	duration *prometheus.HistogramVec
	byVerb   [maxVerb + 1]prometheus.Observer // of duration, resolved once
}

// NewRecorder returns a recorder without events.
func NewRecorder() *Recorder {
	model := activity.New(activity.Options{})
	r := &Recorder{
		model:   model,
		state:   model.State,
		started: time.Now(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "tenure",
			Name:      "request_duration_seconds",
			Help:      "Time from the reading of a request until its reply could leave, the commit included.",
			Buckets:   []float64{25e-6, 100e-6, 250e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1, 5},
		}, []string{"verb"}),
	}
	for verb := range r.byVerb {
		r.byVerb[verb] = r.duration.WithLabelValues(statestore.Verb(verb).String())
	}
	return r
}

// Observe takes an event; it is an observer for server.Options and attach.Options.
func (r *Recorder) Observe(event activity.Event) {
	r.model.Observe(event)
	if event.Kind == activity.Request {
		r.byVerb[min(event.Verb, maxVerb)].Observe(event.Took.Seconds())
	}
}
