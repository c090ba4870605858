package crashtest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurelock/tenure/transport"
)

// History is what clients saw of one key, and the restarts of the store meanwhile.
type History struct {
	Operations []Operation
	Restarts   []Restart // in order
	// Strict says that the store is strict: see statestore.Options.
	Strict bool
}

// Verdict is what a check of a History found.
type Verdict uint8

// The verdicts.
const (
	// Undecided: the check did not end in time. It proves nothing.
	Undecided Verdict = iota
	// Linearizable: the operations can have taken effect one after the other, each between
	// its call and its return.
	Linearizable
	// NotLinearizable: they cannot.
	NotLinearizable
)

var verdictNames = []string{"undecided", "linearizable", "not linearizable"}

// String returns the verdict in words.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", v)
}

// Check reports whether the operations on the key are linearizable: whether they can have
// taken effect one after the other, by the rules of the protocol and of a durable store. It
// gives up after timeout, or after a step for each microsecond of it: in a synctest bubble time
// stands still during the check.
//
// An operation of unknown outcome may take effect at any time after its call, or never. A key
// with a lifetime may go away between the two times that its SET and the restarts since allow.
func (h *History) Check(timeout time.Duration) Verdict {
	g := &rules{restarts: h.Restarts, strict: h.Strict}
	left := int64(timeout / time.Microsecond) // steps
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) []any {
			if left--; left < 0 {
				return nil // so the check ends soon, without a verdict
			}
			after := g.after(state.(register), input.(*Operation))
			states := make([]any, len(after))
			for i, r := range after {
				states[i] = r
			}
			return states
		},
	}
	operations := make([]porcupine.Operation, 0, len(h.Operations))
	for i := range h.Operations {
		o := &h.Operations[i]
		end := o.Return
		if o.Result == Unknown {
			if !o.changes() {
				continue // a GET without a reply says nothing
			}
			end = forever
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Call), Return: int64(end)})
	}
	switch result := porcupine.CheckOperationsTimeout(model.ToModel(), operations, timeout); {
	case result == porcupine.Ok:
		return Linearizable
	case result == porcupine.Illegal && left >= 0:
		return NotLinearizable
	}
	return Undecided
}

// String returns the operations and the restarts in the order of their calls, one each line.
func (h *History) String() string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, o := range h.Operations {
		lines = append(lines, line{o.Call, o.String()})
	}
	for _, r := range h.Restarts {
		lines = append(lines, line{r.Dead, fmt.Sprintf("%9.3f–%9.3f ms restart", milliseconds(r.Dead), milliseconds(r.Ready))})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.text)
		b.WriteByte('\n')
	}
	return b.String()
}

// Weight is how much a History tests. Histories of little weight are linearizable whatever
// the store does.
type Weight struct {
	Operations int // with a known result
	Unknown    int // that may have changed the key, with an unknown one
	// Conditional counts SETs with a condition, VDELs, and SETs, DELs and VDELs with a token
	// that succeeded.
	Conditional int
	// Concurrent counts pairs of operations of different clients at the same time, one of which
	// may have changed the key.
	Concurrent int
	// Crashes counts restarts with a successful operation before and another one after.
	Crashes int
}

// Add adds another weight.
func (w *Weight) Add(other Weight) {
	w.Operations += other.Operations
	w.Unknown += other.Unknown
	w.Conditional += other.Conditional
	w.Concurrent += other.Concurrent
	w.Crashes += other.Crashes
}

// Weight returns how much the history tests.
func (h *History) Weight() (w Weight) {
	first, last := forever, time.Duration(0) // return of the first success, call of the last one
	for i := range h.Operations {
		o := &h.Operations[i]
		if o.Result == Unknown {
			if o.changes() {
				w.Unknown++
			}
		} else {
			w.Operations++
		}
		if o.Result == Done {
			first, last = min(first, o.Return), max(last, o.Call)
			if o.Kind == VDel || o.Condition != transport.Always || o.changes() && !o.Token.IsZero() {
				w.Conditional++
			}
		}
		for j := range h.Operations[:i] {
			p := &h.Operations[j]
			if p.Client != o.Client && (p.changes() || o.changes()) && o.Call < p.Return && p.Call < o.Return {
				w.Concurrent++
			}
		}
	}
	for _, r := range h.Restarts {
		if first <= r.Dead && last >= r.Ready {
			w.Crashes++
		}
	}
	return w
}
