package pair

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// Counter is what the protected key holds, in JSON.
type Counter struct {
	Node  string    `json:"node"`
	Token hlc.Token `json:"token"`
	Count int       `json:"count"`
}

// LeaseKey returns the key of the lease for which the pair of a run campaigns.
func LeaseKey(run string) string { return "failover/" + run + "/active" }

// CounterKey returns the key that the token of the lease protects.
func CounterKey(run string) string { return "failover/" + run + "/counter" }

// ControlKey returns the key that is written without a token.
func ControlKey(run string) string { return "failover/" + run + "/control" }

// Kinds of events.
const (
	KindPhase = "phase"
	KindWrite = "write"
)

// Outcomes of writes.
const (
	Accepted       = "accepted"
	RefusedByGuard = "refused by the guard"
	RefusedByStore = "refused by the store"
	Unknown        = "unknown"
)

// Event is a line that a node writes to its standard output, in JSON: a change of its phase, or a
// write with its outcome.
type Event struct {
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	Kind string    `json:"kind"`

	Phase string    `json:"phase,omitempty"`
	Token hlc.Token `json:"token"`
	Cause string    `json:"cause,omitempty"`

	Outcome string        `json:"outcome,omitempty"`
	Version hlc.Timestamp `json:"version"`
	Count   int           `json:"count,omitempty"`
	Late    bool          `json:"late,omitempty"`    // sent past the guard
	Control bool          `json:"control,omitempty"` // to the control
}

// eventWriter writes events, from any goroutine.
type eventWriter struct {
	node string
	mu   sync.Mutex
	to   *json.Encoder
}

func newEventWriter(node string, to io.Writer) *eventWriter {
	return &eventWriter{node: node, to: json.NewEncoder(to)}
}

func (w *eventWriter) write(e Event) {
	e.Node = w.node
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.to.Encode(e) // fails when the director is gone; the node ends then too
}
