package crashtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Property is what a store must keep over a crash.
type Property string

// The properties that Run checks.
const (
	// VersionsRise: a version is above all versions that any client saw before.
	VersionsRise Property = "versions rise"
	// LeasesLast: the key of a lease is there until its holder's deadline.
	LeasesLast Property = "a lease lasts until its holder's deadline"
	// OneHolder: no two tenures of a lease hold at the same time, and tokens rise.
	OneHolder Property = "one holder at a time"
	// IdentityStays: the identity of the store is the same after a crash.
	IdentityStays Property = "the identity stays"
	// AnsweredOnce: a request that is delivered again gets its first reply, or is applied for
	// the first time: the crash kept the change and the remembered reply, or neither.
	AnsweredOnce Property = "a redelivered request is applied once"
	// StartsAgain: the store starts on what a crash left.
	StartsAgain Property = "the store starts again"
	// HistoriesAreLinearizable: see History.
	HistoriesAreLinearizable Property = "histories are linearizable"
	// OnlyKnownErrors: clients get no error that makes no sense.
	OnlyKnownErrors Property = "clients get sensible answers"
)

// Violation is a property that did not hold, and what showed it.
type Violation struct {
	Property Property
	Text     string
}

// Counted is what a run counts.
type Counted string

// What a run counts. Without enough of each, by least, it proves little.
const (
	Answered      Counted = "requests answered"
	Unanswered    Counted = "requests of unknown outcome"
	Conditional   Counted = "conditional requests that succeeded"
	Histories     Counted = "histories checked"
	Notifications Counted = "notifications"
	Tenures       Counted = "tenures"
	Probes        Counted = "reads of a lease during a tenure"
	Redelivered   Counted = "requests delivered again after a crash"
	Visits        Counted = "reads sent to a process that was deposed"
	WrongClocks   Counted = "restarts with a clock that is wrong"
)

// least is how much there must be for each crash.
var least = map[Counted]float64{
	Answered: 20, Unanswered: 1. / 4, Conditional: 10, Histories: 1, Notifications: 1, Tenures: 1. / 8, Probes: 1,
}

// Report is what a run did and found.
type Report struct {
	// Cycles is how often the store was killed, and Deaths where.
	Cycles int
	Deaths map[string]int
	// Violations are the first ones that were found; none if the store kept what it must.
	Violations []Violation
	Counts     map[Counted]int
	// Took is how long the run took.
	Took time.Duration

	redelivers bool
}

// ErrThin is what errors.Is finds in the error of Report.Err if too little happened for the run
// to prove anything.
var ErrThin = errors.New("the run proves little")

// Err returns nil if the store kept what it must, and enough happened to show that.
func (r *Report) Err() error {
	var all []error
	for _, v := range r.Violations {
		all = append(all, fmt.Errorf("%s: %s", v.Property, v.Text))
	}
	wanted := maps.Clone(least)
	if r.redelivers {
		wanted[Redelivered] = 1
	}
	for what, each := range wanted {
		if want := int(each * float64(r.Cycles)); r.Counts[what] < want || r.Cycles == 0 {
			all = append(all, fmt.Errorf("%w: %s: %d, want at least %d", ErrThin, what, r.Counts[what], want))
		}
	}
	return errors.Join(all...)
}

// String returns the report, a line for each count.
func (r *Report) String() string {
	lines := []string{fmt.Sprintf("%d crashes in %v, %d violations", r.Cycles, r.Took.Round(time.Second), len(r.Violations))}
	for _, where := range slices.Sorted(maps.Keys(r.Deaths)) {
		lines = append(lines, fmt.Sprintf("killed %s: %d", where, r.Deaths[where]))
	}
	for _, what := range slices.Sorted(maps.Keys(r.Counts)) {
		lines = append(lines, fmt.Sprintf("%s: %d", what, r.Counts[what]))
	}
	return strings.Join(lines, "\n")
}

const maxViolations = 20

// A recorder has the clock of a run, and what all clients have seen together.
type recorder struct {
	began time.Time

	mu       sync.Mutex
	report   Report
	broken   chan struct{} // closed by the first violation
	restarts []Restart
	highest  hlc.Timestamp // of all versions that clients have seen
	identity string        // of the store; empty until it is known
}

func newRecorder() *recorder {
	return &recorder{
		began: time.Now(), broken: make(chan struct{}),
		report: Report{Deaths: make(map[string]int), Counts: make(map[Counted]int)},
	}
}

// now returns the time on the clock of the run.
func (r *recorder) now() time.Duration { return time.Since(r.began) }

// count adds to a count, and returns it.
func (r *recorder) count(what Counted, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Counts[what] += n
	return r.report.Counts[what]
}

// died notes where the store was killed.
func (r *recorder) died(where string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Deaths[where]++
}

// violated notes a violation.
func (r *recorder) violated(property Property, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.report.Violations) == 0 {
		close(r.broken)
	}
	if len(r.report.Violations) < maxViolations {
		text := fmt.Sprintf("at %.3f s: ", r.now().Seconds()) + fmt.Sprintf(format, args...)
		r.report.Violations = append(r.report.Violations, Violation{property, text})
	}
}

// reported returns the report so far, after so many cycles.
func (r *recorder) reported(cycles int) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Cycles, r.report.Took = cycles, r.now()
	copied := r.report
	copied.Violations = slices.Clone(r.report.Violations)
	copied.Counts, copied.Deaths = maps.Clone(r.report.Counts), maps.Clone(r.report.Deaths)
	return &copied
}

// restarted notes an interruption of the store that is over.
func (r *recorder) restarted(restart Restart) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarts = append(r.restarts, restart)
}

// restartsNear returns the restarts that can matter to operations since a time.
func (r *recorder) restartsNear(since time.Duration) []Restart {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, _ := slices.BinarySearchFunc(r.restarts, since, func(one Restart, at time.Duration) int { return cmp.Compare(one.Ready, at) })
	return slices.Clone(r.restarts[first:])
}

// saw notes a version that a client has got, and returns the highest before.
func (r *recorder) saw(version hlc.Timestamp) (before hlc.Timestamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.highest
	if version.Compare(before) > 0 {
		r.highest = version
	}
	return before
}

// A session is one client of the store, which records what it sees.
type session struct {
	*transport.Client
	recorder *recorder
	number   int
}

// do sends the request that o describes, and returns o with what became of it.
func (s *session) do(ctx context.Context, o Operation) Operation {
	before := s.recorder.saw(hlc.Timestamp{})
	o.Client, o.Call = s.number, s.recorder.now()
	var err error
	existed := true
	switch o.Kind {
	case Get:
		var entry transport.Entry
		entry, err = s.Get(ctx, o.Key)
		o.Read, o.Version, existed = string(entry.Value), entry.Version, entry.Exists
	case Set:
		o.Version, err = s.Set(ctx, o.Key, []byte(o.Value), transport.SetOptions{Condition: o.Condition, TTL: o.TTL, FencingToken: o.Token})
	case Del:
		existed, err = s.Del(ctx, o.Key, transport.DelOptions{FencingToken: o.Token})
	case VDel:
		existed, err = s.VDel(ctx, o.Key, []byte(o.Value), transport.DelOptions{FencingToken: o.Token})
	}
	o.Return, o.Result = s.recorder.now(), resultOf(err)
	if o.Result == Done && !existed {
		o.Result = Absent
	}
	switch o.Result {
	case Unknown:
		o.Version = hlc.Timestamp{}
		s.recorder.count(Unanswered, 1)
	case notSent:
		o.Version = hlc.Timestamp{}
	case strange:
		s.recorder.violated(OnlyKnownErrors, "%v: %v", o, err)
	default:
		s.recorder.count(Answered, 1)
	}
	if o.Result == Done && o.isConditional() {
		s.recorder.count(Conditional, 1)
	}
	if o.Kind == Set && o.Result == Done && o.Version.Compare(before) <= 0 {
		s.recorder.violated(VersionsRise, "%v, after version %v was seen", o, before)
	}
	s.recorder.saw(o.Version)
	s.identify()
	return o
}

// identify compares the identity of the store with the one that it had at first.
func (s *session) identify() {
	identity, _ := s.Store()
	if identity == "" {
		return
	}
	r := s.recorder
	r.mu.Lock()
	first := cmp.Or(r.identity, identity)
	r.identity = first
	r.mu.Unlock()
	if identity != first {
		r.violated(IdentityStays, "client %d met the store %s, which was %s", s.number, identity, first)
	}
}
