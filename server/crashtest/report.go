package crashtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is what a run did and found.
type Report struct {
	// Cycles is how often the store was killed, and Deaths where.
	Cycles int
	Deaths map[string]int
	// Compared is after how many restarts everything was read and compared.
	Compared int
	// Violations are the first ones that were found; none if the store kept what it must.
	Violations []Violation

	// Answered and Unanswered count requests.
	Answered, Unanswered int
	// Histories counts the histories that were checked, Thin the histories among them that no
	// crash interrupted. Weight is their sum, and Longest the time of the longest check.
	Histories, Thin int
	Weight          Weight
	Longest         time.Duration
	// Notifications counts what watches of counters told.
	Notifications int
	// Gone counts keys that were seen gone.
	Gone int
	// Tenures were won, and Outlived counts how often one outlived a crash. Probes are reads of
	// a lease's key during a tenure, GuardedWrites writes under a token, and StaleWrites
	// writes with an old token, all of them refused.
	Tenures, Outlived, Probes, GuardedWrites, StaleWrites int
	// Renewals counts renewals of keys that nothing else writes.
	Renewals int
	// Redelivered counts requests that were delivered again after a crash.
	Redelivered int
	// Visits counts reads that were sent to a process that was deposed.
	Visits int
	// Clocks counts restarts after which the clock of the store was wrong, Partitions how often the
	// network failed, and Losses how often the power was lost within a commit.
	Clocks, Partitions, Losses int
	// Took is how long the run took, Outage how long the store did not answer after a death:
	// half of the times, and the longest.
	Took, Outage, LongestOutage time.Duration

	began      time.Time
	redelivers bool
	outages    []time.Duration
}

func (h *harness) summarize() {
	r, report := h.recorder, &h.report
	r.mu.Lock()
	report.Violations = slices.Clone(r.violations)
	report.Answered, report.Unanswered = r.answered, r.unanswered
	r.mu.Unlock()
	g := h.registers
	g.resultsMu.Lock()
	report.Histories, report.Thin, report.Weight, report.Longest = g.verdicts[Linearizable]+g.verdicts[NotLinearizable]+g.verdicts[Undecided], g.thin, g.weight, g.worst
	g.resultsMu.Unlock()
	report.Notifications = int(h.counters.notifications.Load())
	h.gone.mu.Lock()
	report.Gone = h.gone.seen
	h.gone.mu.Unlock()
	report.Tenures, report.Outlived, report.Probes, report.GuardedWrites, report.StaleWrites = 0, 0, 0, 0, 0
	for _, c := range h.contests {
		c.mu.Lock()
		report.Tenures += c.won
		report.Outlived += c.outlived
		report.Probes += c.probes
		report.GuardedWrites += c.writes
		report.StaleWrites += c.staleTries
		c.mu.Unlock()
	}
	report.Renewals = int(h.renewals.count.Load())
	report.Redelivered = 0
	for _, d := range h.redeliveries {
		d.mu.Lock()
		report.Redelivered += d.again
		d.mu.Unlock()
	}
	report.Visits = int(h.visited.Load())
	report.Partitions = int(h.partitions.Load())
	if store, ok := h.store.(interface{ Losses() int }); ok {
		report.Losses = store.Losses()
	}
	report.redelivers = len(h.redeliveries) > 0
	report.Took = time.Since(report.began)
	if n := len(report.outages); n > 0 {
		sorted := slices.Sorted(slices.Values(report.outages))
		report.Outage, report.LongestOutage = sorted[n/2], sorted[n-1]
	}
}

// ErrThin is what errors.Is finds in the error of Report.Err if too little happened for the run
// to prove anything.
var ErrThin = errors.New("the run proves little")

// Err returns nil if the store kept what it must, and enough happened to show that.
func (r *Report) Err() error {
	var all []error
	for _, v := range r.Violations {
		all = append(all, errors.New(v.String()))
	}
	atLeast := func(what string, got, want int) {
		if got < want {
			all = append(all, fmt.Errorf("%w: %s: %d, want at least %d", ErrThin, what, got, want))
		}
	}
	n := r.Cycles
	atLeast("restarts after which everything was compared", r.Compared, n/4)
	atLeast("histories", r.Histories, n)
	atLeast("histories with a crash between two successes", r.Histories-r.Thin, n/2)
	atLeast("conditional requests that succeeded", r.Weight.Conditional, 10*n)
	atLeast("pairs of concurrent requests", r.Weight.Concurrent, 10*n)
	atLeast("requests of unknown outcome", r.Unanswered, n/4)
	atLeast("notifications", r.Notifications, n)
	atLeast("keys that were seen gone", r.Gone, n)
	atLeast("tenures", r.Tenures, n/8)
	atLeast("crashes that a tenure outlived", r.Outlived, n/8)
	atLeast("renewals", r.Renewals, 10*n)
	atLeast("reads of a lease during a tenure", r.Probes, n)
	atLeast("writes under a token", r.GuardedWrites, n)
	atLeast("writes under an old token", r.StaleWrites, n/8)
	if r.redelivers {
		atLeast("requests delivered again after a crash", r.Redelivered, n)
	}
	return errors.Join(all...)
}

// String returns the report as a table in Markdown.
func (r *Report) String() string {
	var b strings.Builder
	row := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, fmt.Sprintf(format, args...))
	}
	b.WriteString("| | |\n|---|---|\n")
	row("crashes", "%d in %v", r.Cycles, r.Took.Round(time.Second))
	for _, where := range slices.Sorted(maps.Keys(r.Deaths)) {
		row("killed "+where, "%d", r.Deaths[where])
	}
	row("time without a store", "%v in half of the crashes, %v at most", r.Outage.Round(time.Millisecond), r.LongestOutage.Round(time.Millisecond))
	row("requests answered / of unknown outcome", "%d / %d", r.Answered, r.Unanswered)
	row("everything compared after", "%d restarts", r.Compared)
	row("histories checked", "%d, %d with a crash in them; the longest check took %v", r.Histories, r.Histories-r.Thin, r.Longest.Round(time.Millisecond))
	row("their requests answered / of unknown outcome", "%d / %d", r.Weight.Operations, r.Weight.Unknown)
	row("their conditional requests that succeeded", "%d", r.Weight.Conditional)
	row("their pairs of concurrent requests", "%d", r.Weight.Concurrent)
	row("notifications", "%d", r.Notifications)
	row("keys seen gone", "%d", r.Gone)
	row("tenures", "%d; one outlived a crash %d times", r.Tenures, r.Outlived)
	row("renewals", "%d", r.Renewals)
	row("reads of a lease during a tenure", "%d", r.Probes)
	row("writes under a token / under an old one", "%d / %d, all refused", r.GuardedWrites, r.StaleWrites)
	row("requests delivered again after a crash", "%d", r.Redelivered)
	row("restarts with a clock that is wrong", "%d", r.Clocks)
	row("partitions", "%d", r.Partitions)
	row("losses of power within a commit", "%d", r.Losses)
	if r.Visits > 0 {
		row("reads sent to a process that was deposed", "%d", r.Visits)
	}
	row("**violations**", "**%d**", len(r.Violations))
	return b.String()
}
