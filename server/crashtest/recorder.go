package crashtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// Property is what a store must keep over a crash.
type Property string

// The properties that Run checks.
const (
	// WritesSurvive: an acknowledged write is there after the crash.
	WritesSurvive Property = "an acknowledged write survives"
	// VersionsRise: a version is above all versions that any client saw before.
	VersionsRise Property = "versions rise"
	// FencesHold: a write with a token is refused once one with a higher token succeeded.
	FencesHold Property = "fences hold"
	// GoneStaysGone: a key that was seen gone does not come back without a write.
	GoneStaysGone Property = "a key that was seen gone stays gone"
	// NotifiedIsKept: what a notification told is there after the crash.
	NotifiedIsKept Property = "what a notification told survives"
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

// String returns the property and the text.
func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Property, v.Text) }

const maxViolations = 20

// A recorder has the clock of a run, and what all clients have seen together.
type recorder struct {
	began time.Time

	turn atomic.Int32 // see turns

	mu         sync.Mutex
	violations []Violation // the first maxViolations
	broken     chan struct{}
	restarts   []Restart
	highest    hlc.Timestamp // of all versions that clients have seen
	identity   string        // of the store; empty until it is known
	answered   int           // requests
	unanswered int           // requests that were sent
}

func newRecorder() *recorder { return &recorder{began: time.Now(), broken: make(chan struct{})} }

// now returns the time on the clock of the run.
func (r *recorder) now() time.Duration { return time.Since(r.began) }

// violated notes a violation.
func (r *recorder) violated(property Property, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.violations) == 0 {
		close(r.broken)
	}
	if len(r.violations) < maxViolations {
		text := fmt.Sprintf("at %.3f s: ", r.now().Seconds()) + fmt.Sprintf(format, args...)
		r.violations = append(r.violations, Violation{property, text})
	}
}

// restarted notes an interruption of the store that is over.
func (r *recorder) restarted(restart Restart) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarts = append(r.restarts, restart)
}

// requests returns how many requests were answered so far.
func (r *recorder) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered
}

// restartsNear returns the restarts that can matter to operations since a time.
func (r *recorder) restartsNear(since time.Duration) []Restart {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, _ := slices.BinarySearchFunc(r.restarts, since, func(one Restart, at time.Duration) int { return cmp.Compare(one.Ready, at) })
	return slices.Clone(r.restarts[first:])
}

// The turns. A crash forgets the renewals before it, and none of their versions. That shows
// best if only renewals come before it, and then a client that does not know their versions.
const (
	turnOfAll int32 = iota
	turnOfRenewals
	turnOfRedeliveries
)

// await waits while it is the turn of other clients.
func (r *recorder) await(ctx context.Context, mine int32) {
	for ctx.Err() == nil {
		if turn := r.turn.Load(); turn == turnOfAll || turn == mine {
			return
		}
		sleep.For(ctx, time.Millisecond)
	}
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
	turn     int32
}

// do sends the request that o describes, and returns o with what became of it.
func (s *session) do(ctx context.Context, o Operation) Operation {
	s.recorder.await(ctx, s.turn)
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
	if o.Result == Unknown || o.Result == notSent {
		o.Version = hlc.Timestamp{}
	}
	s.count(o.Result)
	if o.Result == strange {
		s.recorder.violated(OnlyKnownErrors, "%v: %v", o, err)
	}
	if o.Kind == Set && o.Result == Done && o.Version.Compare(before) <= 0 {
		s.recorder.violated(VersionsRise, "%v, after version %v was seen", o, before)
	}
	s.recorder.saw(o.Version)
	s.identify()
	return o
}

func (s *session) count(result Result) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	switch result {
	case Unknown:
		s.recorder.unanswered++
	case notSent:
	default:
		s.recorder.answered++
	}
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
