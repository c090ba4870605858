//go:build unix || windows

package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/pair"
)

// fault is one thing that happened to the pair, and what followed.
type fault struct {
	Name string `json:"fault"`
	// Gap is how long no node was active; Limit what the project promises.
	Gap   time.Duration `json:"without_active_ns"`
	Limit time.Duration `json:"promised_ns"`
	// KeepsLeader: the fault is not one of a node, and the active node goes on leading.
	KeepsLeader bool `json:"keeps_leader,omitempty"`
	// Token is the successor's, or the leader's where KeepsLeader.
	Token hlc.Token `json:"successor_token"`
	// The writes from this fault to the next.
	Accepted       int `json:"writes_accepted"`
	RefusedByGuard int `json:"writes_refused_by_guard"`
	RefusedByStore int `json:"writes_refused_by_store"`
	Unknown        int `json:"writes_of_unknown_outcome"`

	since time.Time // when the last active node stopped
	over  bool      // with KeepsLeader: what follows is not due to the fault
}

// result is what a run showed.
type result struct {
	TTL    time.Duration `json:"ttl_ns"`
	Faults []*fault      `json:"faults"`
	Stale  int           `json:"stale_writes_accepted"`
	Lost   int           `json:"updates_lost_without_fencing"`
	Checks pair.Checks   `json:"checks"`

	woke    bool // a node was frozen and woken, and then wrote late
	current *fault
	tokens  []hlc.Token  // of the terms, in the order of their beginning
	fenced  pair.Writes  // to the protected key
	control pair.History // of the key that nothing protects
	latest  time.Time    // when the node got the last acceptance
	unknown []pair.Event // writes that got no answer, as when a node ends; the store may have applied them
}

func newResult(ttl time.Duration) *result {
	first := &fault{Name: "none (start)"}
	return &result{TTL: ttl, Faults: []*fault{first}, woke: true, current: first, fenced: pair.NewWrites(), control: make(pair.History)}
}

// begin opens the row of a fault. It becomes current with awaitSuccessor.
func (r *result) begin(name string, limit time.Duration, since time.Time) *fault {
	f := &fault{Name: name, Limit: limit, since: since}
	r.Faults = append(r.Faults, f)
	return f
}

// beginStore opens the row of a fault of the store, which becomes current at once. No node is to
// begin or end a term.
func (r *result) beginStore(name string) *fault {
	f := r.begin(name, 0, time.Time{})
	f.KeepsLeader, f.Token = true, r.tokens[len(r.tokens)-1]
	r.current = f
	return f
}

// leads notes the beginning of a term.
func (r *result) leads(e pair.Event) {
	r.tokens = append(r.tokens, e.Token)
	if r.current.KeepsLeader && !r.current.over {
		r.current.Token = e.Token
		if r.current.Gap == 0 {
			r.current.Gap = e.At.Sub(r.current.since)
		}
	}
	if r.current.Token.IsZero() {
		r.current.Token = e.Token
		if !r.current.since.IsZero() {
			r.current.Gap = e.At.Sub(r.current.since)
		}
	}
}

// drains notes the end of a term that its node ended itself.
func (r *result) drains(e pair.Event) {
	if (r.current.Limit > 0 || r.current.KeepsLeader && !r.current.over) && r.current.since.IsZero() {
		r.current.since = e.At
	}
}

// wrote notes a write.
func (r *result) wrote(e pair.Event) {
	r.fenced.Add(e)
	switch e.Outcome {
	case pair.Accepted:
		r.current.Accepted++
		r.latest = e.At
	case pair.RefusedByGuard:
		r.current.RefusedByGuard++
	case pair.RefusedByStore:
		r.current.RefusedByStore++
	default:
		r.current.Unknown++
		r.unknown = append(r.unknown, e)
	}
}

// conclude makes the checks, given how many nodes still ran and what the store
// holds in the end.
func (r *result) conclude(running int, version hlc.Timestamp, last pair.Counter) {
	r.fenced.History.Saw(version, last.Token)
	r.Stale, r.Lost = r.fenced.CheckStale(&r.Checks), r.control.Stale()
	if r.woke {
		r.Checks.Add("without fencing updates are lost", r.Lost > 0,
			"a key without a token, written beside it: %d stale writes accepted", r.Lost)
	}
	r.Checks.Add("tokens rise from term to term", slices.IsSortedFunc(r.tokens, hlc.Token.Compare) && len(r.tokens) >= 4,
		"%d terms", len(r.tokens))
	if r.woke {
		r.fenced.CheckLate(&r.Checks, "the woken node's late write was refused")
	}
	for _, f := range r.Faults {
		if f.KeepsLeader {
			r.Checks.Add("the leader kept its lease while the store was killed", f.since.IsZero(), "its token is %v", f.Token)
		}
	}
	holds := func(e pair.Event) bool { return last.Count == e.Count && last.Token == e.Token }
	r.Checks.Add("the store holds the last accepted write",
		version == r.fenced.Highest.Version && holds(r.fenced.Highest) ||
			version.Compare(r.fenced.Highest.Version) > 0 && slices.ContainsFunc(r.unknown, holds), // or one after it
		"count %d by %s", last.Count, last.Node)
	r.Checks.Add("it ends as a pair", running == 2, "%d nodes run", running)
}

func (r *result) ok() bool { return r.Checks.OK() }

// write prints the result for people.
func (r *result) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\twithout an active node\tpromised\taccepted\trefused by guard\tby store\tunknown\ttoken of the leader after it\n")
	for _, f := range r.Faults {
		gap, limit := "–", "–"
		if f.Limit > 0 || f.KeepsLeader {
			gap, limit = round(f.Gap).String(), promise(f.Limit)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%v\n",
			f.Name, gap, limit, f.Accepted, f.RefusedByGuard, f.RefusedByStore, f.Unknown, f.Token)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return r.Checks.Write(w)
}
