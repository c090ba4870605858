package lease

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// What three holders did, sent and heard over real MQTT is replayed against the values that decide: claim, waiting,
// schedule and freeing. A history is a path that they allow, if there are random numbers with which they do the same at
// the same times. So a replay follows all paths that are left, each with other random numbers, and a moment that no path
// allows fails the test. examples/ownconnection/record_test.go makes a history.

const ownHistory = "testdata/history.json"

var history = flag.String("history", ownHistory, "what TestARecordedHistoryIsAPathThatTheCodeAllows replays")

const (
	// draws is how many random numbers are tried where one is needed.
	draws = 16
	// What is noted comes shortly after what it is about: pauses of the goroutine in between.
	early = 4 * time.Millisecond
	// A timer fires late.
	slack = 60 * time.Millisecond
)

// moment is a line of a history: see the recorder.
type moment struct {
	Holder                        string
	At                            time.Duration
	What                          string
	Call                          int
	Value, Store, Result, Version string
}

// path is one way in which a holder can have come to the present moment.
type path struct {
	phase    phase
	claim    claim
	waiting  waiting
	schedule schedule
	freeing  freeing
	left     bool          // the store may still have the value of an earlier attempt
	leftOver bool          // freeing is about that value
	until    time.Duration // pausing, resting: when the next request leaves; a request of a tenure: when it is given up
}

// replayed is one holder. What is not in its paths was recorded.
type replayed struct {
	options  Options
	paths    []path
	value    string // of the attempt
	bound    string // the store that the latest request was bound to
	knows    string // the store that answered last
	replaced bool   // another one has answered since
	call     int    // that is under way; 0: none
	verb     string
	doubts   bool // heard that the key has another value
	sent     time.Duration
	hint     *moment // heard while a request was under way
}

// forDraws returns what each random number leads to.
func forDraws(next func(random float64) path) (paths []path) {
	for i := range draws {
		if p := next(float64(i) / draws); !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	return paths
}

func fixed(random float64) func() float64 { return func() float64 { return random } }

// resultOf returns the error of an answer.
func (m moment) err() error {
	switch {
	case m.Result == "unknown":
		return transport.ErrOutcomeUnknown
	case m.Result == "not sent":
		return transport.ErrNotSent
	case m.Result == ":-1":
		return transport.ErrConditionFailed
	case strings.HasPrefix(m.Result, "-"):
		return &transport.RefusedError{Text: strings.TrimPrefix(m.Result[1:], "ERR ")}
	}
	return nil
}

func (m moment) version() hlc.Timestamp {
	version, _ := hlc.Parse(m.Version)
	return version
}

// await returns a path that waits for another holder, or for the next claim, after e.
func (p path) await(now time.Duration, e waitEvent) []path {
	return forDraws(func(random float64) path {
		q := p
		e.random = fixed(random)
		var do waitDo
		q.phase = waits
		if q.waiting, do = p.waiting.next(now, e); do == tryNow {
			q.phase, q.until = pausing, now
		}
		return q
	})
}

// step returns the paths after a moment. An error says why this path does not lead there.
func (r *replayed) step(p path, m moment) ([]path, error) {
	if err := p.pass(m); err != nil {
		return nil, err
	}
	now := m.At
	switch m.What {
	case "acquires":
		if p.phase == holds && p.schedule.cause == nil {
			return nil, errors.New("the tenure is not over")
		}
		p = path{phase: pausing, until: now, left: p.left, claim: r.options.newClaim(false, false)}
		p.waiting = waiting{options: &r.options, backoff: r.options.retryBackoff(r.options.Jitter)}
		return []path{p}, nil
	case "SET", "GET", "VDEL":
		return p.sends(r, m)
	case "got":
		return p.gets(r, m)
	case "heard", "read":
		if p.phase == waits && p.waiting.watches {
			return p.hears(m), nil
		}
		return []path{p}, nil
	case "acquired":
		if p.phase != holds {
			return nil, fmt.Errorf("no tenure begins: the holder %s", phaseNames[p.phase])
		}
		return []path{p}, nil
	case "releases":
		p.schedule = p.schedule.after(now, event{kind: ended, err: ErrReleased})
	case "stops renewing":
		p.schedule = p.schedule.after(now, event{kind: stopped})
	case "has the token":
		if s := p.schedule.after(now-early, event{}); s.cause != nil {
			return nil, fmt.Errorf("the tenure is over: %w", s.cause)
		}
	case "has to stop":
		if s := p.schedule.after(now+early, r.signals()); s.warned == nil && s.cause == nil {
			return nil, fmt.Errorf("the owner's context ends at %v", s.graceAt())
		}
	case "has no token":
		if s := p.schedule.after(now+early, r.signals()); s.cause == nil {
			return nil, errors.New("the tenure is not over")
		}
	case "ended":
		p.schedule = p.schedule.after(now+early, r.signals())
		if text := CauseText(p.schedule.cause); p.schedule.cause == nil || text != m.Result {
			return nil, fmt.Errorf("the tenure ended with %v", p.schedule.cause)
		}
	}
	return []path{p}, nil
}

// signals does what Tenure.withSignals does.
func (r *replayed) signals() event {
	if r.replaced {
		return event{kind: ended, err: ErrStoreReplaced}
	}
	return event{}
}

// pass lets time pass until shortly before m, in which the path must have nothing to do.
func (p *path) pass(m moment) error {
	late := func(at time.Duration, what string) error {
		if at+slack < m.At {
			return fmt.Errorf("it %s at %v", what, at)
		}
		return nil
	}
	switch {
	case p.phase == pausing || p.phase == resting:
		return late(p.until, phaseNames[p.phase]+" until")
	case p.phase == waits:
		return late(p.waiting.dueAt, "tries")
	case p.phase != holds:
		return nil
	}
	for now := time.Duration(0); p.schedule.cause == nil; {
		if now = max(now, p.schedule.due(now)); now > m.At-early {
			return nil
		}
		s, next := p.schedule.next(now, event{})
		if next.do == renew {
			return late(now, "renews")
		}
		p.schedule = s
	}
	return nil
}

// sends returns the paths after a request has left.
func (p path) sends(r *replayed, m moment) ([]path, error) {
	now := m.At + early
	switch {
	case p.phase == holds && m.What == "VDEL":
		if p.schedule = p.schedule.after(now, r.signals()); p.schedule.cause == nil {
			return nil, errors.New("the tenure is not over")
		}
		p.freeing = r.options.newFreeing(m.At, r.sent+r.options.RequestTimeout+r.options.TTL+r.options.Margin-m.At)
		p.phase = clearing
	case p.phase == holds:
		e := event{}
		if m.What == "GET" && r.doubts {
			e.kind = doubted
		}
		s, next := p.schedule.next(now, e)
		if next.do == watch {
			s, next = s.next(now, event{})
		}
		if want := map[string]actionKind{"SET": renew, "GET": confirm}[m.What]; next.do != want {
			return nil, fmt.Errorf("the tenure does not do that: its next renewal is due at %v, and it was over with %v", s.renewAt, s.cause)
		}
		p.schedule, p.until = s, next.until
	case p.phase == asking && m.What == "VDEL" && p.left: // freeLeft, after a refusal
		p.freeing, p.phase, p.left, p.leftOver = r.options.newFreeing(m.At, 0), clearing, false, true
	case p.phase == resting && m.What == "VDEL":
		if now < p.until {
			return nil, fmt.Errorf("it pauses until %v", p.until)
		}
		p.phase = clearing
	case p.phase == pausing && m.What == "SET" && now >= p.until:
		p.phase = asking
	case p.phase == waits && m.What == "SET":
		var do waitDo
		if p.waiting, do = p.waiting.next(now, waitEvent{random: fixed(0)}); do != tryNow {
			return nil, fmt.Errorf("it waits until %v", p.waiting.dueAt)
		}
		p.phase, p.claim = asking, r.options.newClaim(false, p.claim.mayHold)
	default:
		return nil, fmt.Errorf("it %s until %v", phaseNames[p.phase], p.until)
	}
	return []path{p}, nil
}

// gets returns the paths after an answer.
func (p path) gets(r *replayed, m moment) ([]path, error) {
	now, err := m.At, m.err()
	switch {
	case p.phase == asking && p.left && errors.Is(err, transport.ErrConditionFailed):
		return []path{p}, nil // it frees what is left first
	case p.phase == asking:
		return p.answered(r, m, false)
	case p.phase == holds && r.verb == "GET":
		p.schedule = p.schedule.after(now, answered(r.value, transport.Entry{Exists: m.Value != "", Value: []byte(m.Value)}, err))
	case p.phase == holds:
		return forDraws(func(random float64) path {
			q := p
			q.schedule = p.schedule.after(now, renewal(r.sent, err, random))
			return q
		}), nil
	case p.phase == clearing && p.leftOver:
		if _, next := p.freeing.next(now, err, false, fixed(0)); next.do != stop || next.err != nil {
			return nil, errors.New("what was left was not freed, and the replay does not know what follows")
		}
		p.leftOver, m.Result = false, ":-1"
		return p.answered(r, m, true)
	case p.phase == clearing:
		return forDraws(func(random float64) path {
			q := p
			var next claimAction
			q.freeing, next = p.freeing.next(now, err, false, fixed(random))
			if q.phase, q.left = clearing, next.err != nil; next.do == pause {
				q.phase, q.until = resting, now+next.pause
			}
			return q
		}), nil
	}
	return []path{p}, nil
}

// answered returns the paths after an answer to a claim.
func (p path) answered(r *replayed, m moment, freed bool) (paths []path, err error) {
	for i := range draws {
		random, q := float64(i)/draws, p
		var next claimAction
		q.claim, next = p.claim.next(m.At, answer{
			err: m.err(), sent: r.sent, known: r.bound != "", other: r.knows != r.bound, replaced: r.replaced, freed: freed, random: fixed(random),
		})
		switch {
		case next.do == begin:
			q.phase, q.schedule = holds, newSchedule(&r.options, r.sent, random)
			paths = append(paths, q)
		case next.do == ask, next.do == pause:
			q.phase, q.until = pausing, m.At+next.pause
			paths = append(paths, q)
		case errors.Is(next.err, transport.ErrConditionFailed):
			return r.after(q.await(m.At, waitEvent{kind: refused, version: m.version()})), nil
		case again(next.err):
			return nil, fmt.Errorf("the attempt is over: %w", next.err)
		default:
			return r.after(q.await(m.At, waitEvent{kind: delayed})), nil
		}
	}
	return paths, nil
}

// after returns the paths after what was heard during a request.
func (r *replayed) after(paths []path) (all []path) {
	for _, p := range paths {
		all = append(all, p)
		if r.hint != nil && p.phase == waits {
			all = append(all, p.hears(*r.hint)...)
		}
	}
	return all
}

// hears returns the paths after a notification, or after an answer to a watch, which is offered where it is news.
func (p path) hears(m moment) (paths []path) {
	e := waitEvent{kind: changed, exists: m.Value != "", version: m.version()}
	paths = p.await(m.At, e)
	if m.What == "read" {
		e.missed = true
		paths = append(append(paths, p), p.await(m.At, e)...)
	}
	return paths
}

// take replays a moment. The error says why no path leads there.
func (r *replayed) take(m moment) error {
	switch m.What {
	case "got", "read", "watches":
		if m.Store != "" {
			r.replaced = r.replaced || r.bound != "" && m.Store != r.bound
			r.knows = m.Store
		}
		if m.What == "got" && m.Call != r.call {
			return nil // the tenure was over before the answer came
		}
	}
	var after []path
	var refusals []error
	for _, p := range r.paths {
		paths, err := r.step(p, m)
		if err != nil && !slices.ContainsFunc(refusals, func(e error) bool { return e.Error() == err.Error() }) {
			refusals = append(refusals, err)
		}
		for _, q := range paths {
			if !slices.Contains(after, q) {
				after = append(after, q)
			}
		}
	}
	if r.paths = after; len(after) == 0 {
		return errors.Join(refusals...)
	}
	switch m.What {
	case "SET", "GET", "VDEL":
		r.call, r.verb = m.Call, m.What
		if m.What == "SET" {
			r.sent, r.bound, r.replaced, r.value = m.At, m.Store, r.replaced && r.paths[0].phase == holds, m.Value
		}
		r.doubts = r.doubts && m.What != "GET"
	case "heard", "read":
		r.hint, r.doubts = &m, r.doubts || m.Value != r.value
	case "got":
		r.hint = nil
	case "acquired":
		r.doubts = false
	}
	return nil
}

func TestARecordedHistoryIsAPathThatTheCodeAllows(t *testing.T) {
	text, err := os.ReadFile(*history)
	if err != nil {
		t.Fatal(err)
	}
	var moments []moment
	if err := json.Unmarshal(text, &moments); err != nil {
		t.Fatal(err)
	}
	holders, seen := make(map[string]*replayed), make(map[string]int)
	for i, m := range moments {
		m.At *= time.Microsecond
		r := holders[m.Holder]
		switch {
		case m.What == "starts":
			r = &replayed{options: Options{TTL: 2 * time.Second}, paths: []path{{}}}
			if err := r.options.complete(m.Holder); err != nil {
				t.Fatal(err)
			}
			holders[m.Holder] = r
			continue
		case m.What == "crashes":
			delete(holders, m.Holder)
			continue
		case r == nil:
			continue
		}
		if err := r.take(m); err != nil {
			t.Fatalf("line %d: no path of the code leads to %+v:\n%v", i+2, m, err)
		}
		seen[m.What+" "+m.Result]++
	}
	t.Logf("%d moments: %v", len(moments), seen)
	if *history != ownHistory { // what the faults lead to is a matter of moments
		return
	}
	for _, what := range []string{"SET ", "GET ", "VDEL ", "got unknown", "has to stop ", "ended released", "ended deadline_passed", "ended lost", "ended store_replaced"} {
		if seen[what] == 0 {
			t.Errorf("the history has no %q", what)
		}
	}
}
