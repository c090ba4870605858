package crashtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// What a run counts. Without enough of each, by least, it proves little.
const (
	answered      = "requests answered"
	unanswered    = "requests of unknown outcome"
	conditional   = "conditional requests that succeeded"
	histories     = "histories checked"
	notifications = "notifications"
	tenures       = "tenures"
	redelivered   = "requests delivered again after a crash"
	visits        = "reads sent to a process that was deposed"
	wrongClocks   = "restarts with a clock that is wrong"
)

// least is how much there must be for each crash.
var least = map[string]float64{
	answered: 20, unanswered: 1. / 4, conditional: 10, histories: 1, notifications: 1, tenures: 1. / 8, redelivered: 1,
}

// Report is what a run did and found.
type Report struct {
	// Cycles is how often the store was killed.
	Cycles int
	// Violation is the first that was found; nil if the store kept what it must.
	Violation error
	Counts    map[string]int
	// Took is how long the run took.
	Took time.Duration
}

// ErrThin is what errors.Is finds in the error of Report.Err if too little happened for the run
// to prove anything.
var ErrThin = errors.New("the run proves little")

// Err returns nil if the store kept what it must, and enough happened to show that.
func (r *Report) Err() error {
	all := []error{r.Violation}
	for what, each := range least {
		if want := int(each * float64(r.Cycles)); r.Counts[what] < want || r.Cycles == 0 {
			all = append(all, fmt.Errorf("%w: %s: %d, want at least %d", ErrThin, what, r.Counts[what], want))
		}
	}
	return errors.Join(all...)
}

// String returns the report, a line for each count.
func (r *Report) String() string {
	text := fmt.Sprintf("%d crashes in %v; violation: %v", r.Cycles, r.Took.Round(time.Second), r.Violation)
	for _, what := range slices.Sorted(maps.Keys(r.Counts)) {
		text += fmt.Sprintf("\n%s: %d", what, r.Counts[what])
	}
	return text
}

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
	return &recorder{began: time.Now(), broken: make(chan struct{}), report: Report{Counts: make(map[string]int)}}
}

// now returns the time on the clock of the run.
func (r *recorder) now() time.Duration { return time.Since(r.began) }

// count adds to a count, and returns it.
func (r *recorder) count(what string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Counts[what] += n
	return r.report.Counts[what]
}

// violated notes what a store must not do, if it is the first.
func (r *recorder) violated(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report.Violation == nil {
		r.report.Violation = fmt.Errorf("at %.3f s: "+format, append([]any{r.now().Seconds()}, args...)...)
		close(r.broken)
	}
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
	return slices.DeleteFunc(slices.Clone(r.restarts), func(one Restart) bool { return one.Ready < since })
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
		o.Version, err = s.Set(ctx, o.Key, []byte(o.Value),
			transport.SetOptions{Condition: o.Condition, TTL: o.TTL, FencingToken: o.Token})
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
	case Unknown, notSent:
		o.Version = hlc.Timestamp{}
		if o.Result == Unknown {
			s.recorder.count(unanswered, 1)
		}
	case strange:
		s.recorder.violated("%v: %v", o, err)
	default:
		s.recorder.count(answered, 1)
	}
	if o.Result == Done && o.isConditional() {
		s.recorder.count(conditional, 1)
	}
	if o.Kind == Set && o.Result == Done && o.Version.Compare(before) <= 0 {
		s.recorder.violated("%v, after version %v was seen", o, before)
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
		r.violated("client %d met the store %s, which was %s", s.number, identity, first)
	}
}
