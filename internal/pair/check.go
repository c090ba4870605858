package pair

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tenurelock/tenure/hlc"
)

// Check is something that must be true at the end.
type Check struct {
	Name   string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Checks are all checks of a run.
type Checks []Check

// Add adds a check. The format and its arguments are the detail.
func (c *Checks) Add(name string, ok bool, format string, arguments ...any) {
	*c = append(*c, Check{Name: name, OK: ok, Detail: fmt.Sprintf(format, arguments...)})
}

// OK reports whether no check failed.
func (c Checks) OK() bool {
	return !slices.ContainsFunc(c, func(c Check) bool { return !c.OK })
}

// Write prints the checks for people.
func (c Checks) Write(w io.Writer) error {
	for _, c := range c {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		if _, err := fmt.Fprintf(w, "%s  %s (%s)\n", mark, c.Name, c.Detail); err != nil {
			return err
		}
	}
	return nil
}

// History has the version of each write to a key that the store applied, as far as
// known, with the token of the term in which it was made.
type History map[hlc.Timestamp]hlc.Token

// Saw adds a write, unless it is known.
func (h History) Saw(version hlc.Timestamp, token hlc.Token) {
	if _, known := h[version]; !known {
		h[version] = token
	}
}

// Stale counts the writes of a term that came after one of a later term. Versions are
// the store's own order of writes.
func (h History) Stale() (n int) {
	var newest hlc.Token
	for _, version := range slices.SortedFunc(maps.Keys(h), hlc.Timestamp.Compare) {
		if token := h[version]; token.Compare(newest) < 0 {
			n++
		} else {
			newest = token
		}
	}
	return n
}

// Writes are the writes of a pair to the protected key. Make one with NewWrites.
type Writes struct {
	History History // the writes that were accepted, and others that the store is known to hold
	Highest Event   // the accepted write with the highest version
	Late    []Event // the writes that were sent past the guard
}

// NewWrites returns Writes without a write.
func NewWrites() Writes { return Writes{History: make(History)} }

// Add notes a write.
func (w *Writes) Add(e Event) {
	if e.Late {
		w.Late = append(w.Late, e)
	}
	if e.Outcome != Accepted {
		return
	}
	w.History.Saw(e.Version, e.Token)
	if e.Version.Compare(w.Highest.Version) > 0 {
		w.Highest = e
	}
}

// CheckStale checks that no stale write was accepted, and returns how many were.
func (w *Writes) CheckStale(c *Checks) (stale int) {
	stale = w.History.Stale()
	c.Add("stale writes accepted: 0", stale == 0,
		"%d versions of the key, in the store's order; %d of them with a token older than one before", len(w.History), stale)
	return stale
}

// CheckLate adds a check with a name: there were late writes, and the store refused them all.
func (w *Writes) CheckLate(c *Checks, name string) {
	refused := len(w.Late) > 0
	for _, e := range w.Late {
		refused = refused && e.Outcome == RefusedByStore
	}
	c.Add(name, refused, "%d sent past the guard", len(w.Late))
}
