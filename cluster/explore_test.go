package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/explore"
	"github.com/tenurelock/tenure/statestore"
)

// Every order of events around two processes that are elected in one etcd, at a small scope.
//
// A state (world) is a linearizable etcd, two processes with clocks of different rates, and the messages under
// way. The decisions are the real ones: span and proofs (when a process may answer, when it proves that, what a
// proof means), claim (how long the winner waits, what it says of the one before, how it resigns), term (what
// etcd is asked, what its answers mean). The etcd here carries out the very operations of term.
//
// What can happen are the kinds of moves below. A message arrives before time passes, unless a fault holds it: then it
// arrives at any later moment, or never. So a message that is lost, late or late at one end only is one that is held. A frozen
// process does nothing, and what waited for it happens afterwards in any order. A process that crashed begins
// anew at once, without memory. Leadership of etcd moves by a fault, and away from a process that has ended. All but time, arrival, and what
// a process does of its own takes from the budget of faults.
//
// What is checked, by the numbers of docs/invariants.md, is in check and the callers of broken:
// 35: two processes never answer at once. 30: an answer reflects each acknowledged write. 33: an acknowledged write is never
// lost, and each write is applied once. 32: a winner says for no longer than is true that the process before answers nothing. 62: it
// says that the process before fell silent unless that one certainly ended. And the promise of decision 12: without
// another fault a process serves within the sum of the waits, and a resignation costs no wait.
//
// What is abstracted: a store is one number, which each write raises by one. Attempts at several endpoints are attempts at one
// etcd. A request is repeated, or given up, one tick after its last attempt was held: to give up sooner than the real limits do
// allows more, not less. There is no lease of etcd and no page size: nothing of this depends on them. Nor does a process stand aside whose
// standing passed several times in a row: it only delays, and needs more faults. Times that cannot matter any more are the same time in key.

// Standings are in units of a process's clock. A slow clock shows 10 in a tick and a fast one 11, which is the margin.
// The longest standing is MaxStanding, so that the wait after a deletion by hand is of the same size.
const unit = MaxStanding / 110

// scope is what a walk covers.
type scope struct {
	name      string
	rates     [2]time.Duration // of the clocks, in units of a tick
	standings [2]time.Duration // in units
	faults    uint8
	writes    uint8
	deletion  bool // an operator may delete the election key
	steady    bool // no process crashes, resigns or is frozen
}

type phase uint8

const (
	pausing phase = iota // before an attempt, or while another member leads etcd
	looking
	taking
	proving // for the first time
	active  // the journal lasts
	closing
)

// request is what a message asks of etcd.
type request uint8

const (
	look request = iota
	take
	prove
	load
	write
	resign
)

var requests = [...]string{"look at the election", "transaction that takes the key", "proof", "load", "commit", "resignation"}

// message is a request or its answer. Nothing waits for the answer to a message without a listener.
type message struct {
	request              request
	process              uint8
	answer, held, orphan bool
	keep                 bool // prove: one that the standing sent, not the first
	term                 term // that the request is made of
	seen                 observation
	value                int // write: what it writes; load: what was read
	began                time.Duration
	attempt              int
	won                  int64
	err                  error
}

type process struct {
	clock, rate, validity time.Duration
	frozen                bool
	phase                 phase
	waited                uint8 // ticks since the last attempt of a request, or since the pause began
	vain                  uint8 // attempts in a row
	last                  claim
	term                  term
	seen                  observation
	wait                  time.Duration
	proofs                proofs
	unproved              bool // closing: the first proof failed
	loaded, serving       bool
	served                bool // in this term
	leaves                bool // closes for good
	writing               bool
	memory                int
}

type item struct {
	value    string
	revision int64 // 0: it is not there
}

type world struct {
	revision                         int64
	active, format, sequence, record item
	processes                        [2]process
	messages                         []message
	leader, faults, writes           uint8
	deletion, steady                 bool
	acked                            int
	silence                          uint8 // ticks since a process could have answered
	calm                             uint8 // ticks since the last fault
	gentle                           bool  // that was the resignation of the leader, and nothing is held
	rough                            bool  // there was a fault that was no resignation
	fell                             bool  // a process that had served crashed
	terms                            int
}

const (
	// servesWithin is the bound of a takeover in ticks: a repeated request and a pause, a proof by which the process that leads
	// learns that a transaction that came late has deposed it, and 1.1 standings on a slow clock.
	servesWithin = 2 + 1 + 3 + 13
	// resignedWithin is the same after a resignation.
	resignedWithin = 2
	never          = 6 // ticks: longer than Former.Idle is in key
)

var modelKeys = newKeys("p/")

const modelRecord = "k"

func value(i item) int { n, _ := strconv.Atoi(i.value); return n }

// arrive carries out a request at etcd, and makes its answer of it.
func (w *world) arrive(m *message) error {
	m.answer, m.held = true, false
	before := w.record
	switch m.request {
	case look:
		m.seen = modelKeys.observed((*clientv3.GetResponse)(w.get(modelKeys.active, modelKeys.format)))
	case take:
		m.won = m.term.took(w.commit(m.term.takes(m.seen)))
	case prove:
		m.err = m.term.proves((*clientv3.GetResponse)(w.get(modelKeys.active)))
	case load:
		if r := w.commit(m.term.page(modelKeys.records, 1)); !r.Succeeded {
			m.err = ErrDeposed
		}
		m.value = value(w.record)
	case write:
		t := newTransaction()
		t.add(statestore.Group{{ID: []byte(modelRecord), Value: []byte(strconv.Itoa(m.value))}}, 0)
		m.err = m.term.wrote(w.commit(m.term.writes(t)))
	case resign:
		w.commit(m.term.resigns())
	}
	if w.record != before && value(w.record) != value(before)+1 {
		return broken("invariant 33: etcd had %d, and a transaction made it %d", value(before), value(w.record))
	}
	if errors.Is(m.err, ErrForeignData) {
		return broken("invariant 33: %w", m.err)
	}
	return nil
}

var errBroken = errors.New("broken")

// broken says which property is broken.
func broken(format string, a ...any) error {
	return fmt.Errorf("%w: %w", errBroken, fmt.Errorf(format, a...))
}

// check is what holds in each state.
func (w *world) check() error {
	answering := 0
	for i := range w.processes {
		if p := &w.processes[i]; p.answers() {
			answering++
			w.silence = 0
			if p.memory < w.acked {
				return broken("invariant 30: %s answers with %d, and %d was acknowledged", name(uint8(i)), p.memory, w.acked)
			}
		}
	}
	switch {
	case answering > 1:
		return broken("invariant 35: two processes answer at once")
	case value(w.record) < w.acked:
		return broken("invariant 33: %d was acknowledged, and etcd has %d", w.acked, value(w.record))
	case answering == 0 && (w.calm > servesWithin || w.gentle && w.calm > resignedWithin):
		return broken("decision 12: no process serves %d ticks after the last fault", w.calm)
	}
	return nil
}

// Kinds of moves.
const (
	tick    = iota
	deliver // message A: it arrives
	hold    // message A: it arrives later, or never
	act     // process A: what is due
	retry   // process A: its request again
	giveUp  // process A: its request
	commit  // process A: a client writes
	leave   // process A: it resigns
	crash   // process A
	freeze  // process A
	thaw    // process A
	lead    // process A: its member leads etcd
	deleted // by an operator: the election key
)

// kinds are what happens, to process P.
var kinds = [...]string{tick: "a tick passes", act: "P campaigns, proves its standing or begins to serve", retry: "P repeats its request",
	giveUp: "P gives its request up", commit: "P commits what a client writes", leave: "P resigns, and its member hands leadership on",
	crash: "P crashes, and another process begins in its place", freeze: "P is frozen", thaw: "P goes on",
	lead: "the member of P leads etcd", deleted: "an operator deletes the election key"}

func (w *world) moves(moves []explore.Move) []explore.Move {
	add := func(kind, a uint8) { moves = append(moves, explore.Move{Kind: kind, A: a}) }
	for i := range uint8(2) {
		if move, alone := w.alone(i); alone {
			return append(moves, move)
		}
	}
	quiet := true
	for n := range w.messages {
		m := &w.messages[n]
		if m.answer && w.processes[m.process].frozen {
			continue
		}
		add(deliver, uint8(n))
		if !m.held {
			quiet = false
			if w.faults > 0 {
				add(hold, uint8(n))
			}
		}
	}
	for i := range uint8(2) {
		p := &w.processes[i]
		if p.frozen {
			add(thaw, i)
			continue
		}
		if w.due(i) {
			quiet = false
			add(act, i)
		}
		if r, asks := p.asks(); asks && p.waited > 0 && !slices.ContainsFunc(w.messages, func(m message) bool {
			return m.process == i && m.request == r && !m.keep && !m.orphan && !m.held
		}) {
			quiet = false
			add(retry, i)
			add(giveUp, i)
		}
		if p.answers() && !p.writing && w.writes > 0 {
			add(commit, i)
		}
		if w.faults == 0 || w.steady {
			continue
		}
		if p.phase == active {
			add(leave, i)
		}
		if p.phase != pausing {
			add(crash, i)
			add(freeze, i)
		}
	}
	if w.faults > 0 || w.yields() {
		add(lead, 1-w.leader)
	}
	if w.deletion && w.faults > 0 && w.active.revision != 0 {
		add(deleted, 0)
	}
	if quiet {
		add(tick, 0)
	}
	return moves
}

// alone returns the one move that has to be looked at in a state, if there is such a one: it is all that process i can
// do, nothing of it is on the way, no fault is left, and whether it answers stays as it is. So it commutes with all that others do meanwhile, and no
// property sees in which order they come. Time passes only where there is none, so no move is put off for ever.
func (w *world) alone(i uint8) (explore.Move, bool) {
	p := &w.processes[i]
	if w.faults > 0 || w.yields() || p.frozen || p.answers() && !p.writing && w.writes > 0 {
		return explore.Move{}, false
	}
	heard := -1
	for n := range w.messages {
		m := &w.messages[n]
		if m.process != i || m.orphan {
			continue
		}
		if heard >= 0 || !m.answer || m.held || m.request == write || m.keep && m.err != nil {
			return explore.Move{}, false
		}
		heard = n
	}
	due := w.due(i)
	if heard >= 0 {
		return explore.Move{Kind: deliver, A: uint8(heard)}, !due
	}
	_, asks := p.asks()
	return explore.Move{Kind: act, A: i}, due && !asks && (p.phase == pausing || !p.loaded || p.serving || p.proofs.left(p.clock) > 0)
}

// yields reports whether the member that leads etcd is frozen, or its process tries in vain.
func (w *world) yields() bool {
	p := &w.processes[w.leader]
	return p.frozen || p.vain >= maxTries
}

// fault takes from the budget.
func (w *world) fault() { w.faults, w.calm, w.gentle, w.rough = w.faults-1, 0, false, true }

func (w *world) do(m explore.Move) error {
	var err error
	p := &w.processes[m.A%2]
	switch m.Kind {
	case tick:
		if w.silence = min(w.silence+1, never); w.processes[0].answers() || w.processes[1].answers() {
			w.silence = 0 // they do until the next tick
		}
		for i := range w.processes {
			w.processes[i].clock += w.processes[i].rate
			w.processes[i].waited = min(w.processes[i].waited+1, 1)
		}
		w.calm = min(w.calm+1, servesWithin+1)
		if w.processes[0].frozen || w.processes[1].frozen {
			w.calm = 0
		}
	case deliver:
		message := w.messages[m.A]
		before := w.revision
		if message.answer {
			w.messages = slices.Delete(w.messages, int(m.A), int(m.A)+1)
			err = w.receive(message)
		} else if err = w.arrive(&w.messages[m.A]); message.orphan {
			w.messages = slices.Delete(w.messages, int(m.A), int(m.A)+1)
		}
		if message.held && w.revision != before {
			w.calm = 0 // the fault ends here
		}
	case hold:
		w.fault()
		w.messages[m.A].held = true
	case act:
		err = w.act(m.A)
	case retry:
		r, _ := p.asks()
		w.send(m.A, r)
	case giveUp:
		r, _ := p.asks()
		w.answered(m.A, func(m message) bool { return !m.keep })
		switch r {
		case prove, load, write:
			w.close(m.A)
		case resign:
			w.closed(m.A)
		default:
			w.failed(m.A, errNoAnswer)
		}
	case commit:
		w.writes--
		p.writing = true
		w.send(m.A, write)
	case leave:
		rough := w.rough || !p.serving
		w.fault()
		w.rough, w.gentle = rough, p.answers() && w.leader == m.A && w.active.revision == p.term.revision && !slices.ContainsFunc(w.messages, func(m message) bool { return m.held })
		p.leaves = true
		w.close(m.A)
	case crash:
		w.fault()
		w.fell = w.fell || p.served && p.phase == active
		p.leaves = true
		w.answered(m.A, every)
		w.closed(m.A)
	case freeze:
		w.fault()
		p.frozen = true
	case thaw:
		p.frozen, w.calm = false, 0
	case lead:
		if !w.yields() {
			w.fault()
		}
		w.leader, w.calm, w.gentle, w.rough = m.A, 0, false, true
	case deleted:
		w.fault()
		w.active, w.revision = item{}, w.revision+1
	}
	w.messages = slices.DeleteFunc(w.messages, w.isVain)
	return cmp.Or(err, w.check())
}

// isVain reports whether a held message can have no effect any more: no process waits for the answer, and the key
// has a newer revision than the message compares. Only the revision of a missing key, zero, can come again.
func (w *world) isVain(m message) bool {
	compared, conditions := m.term.revision, []clientv3.Cmp(nil)
	switch {
	case !m.held || !m.orphan:
		return false
	case m.request == take:
		compared = m.seen.revision
		conditions, _, _ = m.term.takes(m.seen).Txn()
	case m.request == write:
		conditions, _, _ = m.term.writes(newTransaction()).Txn()
	default:
		conditions, _, _ = m.term.resigns().Txn()
	}
	return (compared != 0 || !w.deletion) && compared < w.revision && w.active.revision != compared &&
		slices.ContainsFunc(conditions, func(c clientv3.Cmp) bool { return !w.holds(c) })
}

func (s scope) model() explore.Model[*world] {
	return explore.Model[*world]{
		Start: func() *world {
			w := &world{faults: s.faults, writes: s.writes, deletion: s.deletion, steady: s.steady, silence: never}
			for i := range w.processes {
				w.processes[i] = process{rate: s.rates[i] * unit, validity: s.standings[i] * unit, waited: 1}
			}
			return w
		},
		Copy: func(w *world) *world {
			c := *w
			c.messages = slices.Clone(w.messages)
			return &c
		},
		Moves:    func(w *world, moves []explore.Move) []explore.Move { return w.moves(moves) },
		Do:       func(w *world, m explore.Move) error { return w.do(m) },
		Describe: func(w *world, m explore.Move) string { return w.describe(m) },
		Key:      func(w *world, key []byte) []byte { return w.key(key) },
	}
}

// Two processes never answer at once, and one serves in time, in every order of events of a scope. With EXPLORE=1
// the scopes are larger.
func TestExploreInvariants30And32And33And35And62TwoProcessesAndOneElection(t *testing.T) {
	slow, fast := time.Duration(10), time.Duration(11)
	for _, s := range []scope{
		{name: "the former process is slow", rates: [2]time.Duration{slow, fast}, standings: [2]time.Duration{110, 110}, faults: 1, writes: 1},
		{name: "the former process is fast", rates: [2]time.Duration{fast, slow}, standings: [2]time.Duration{110, 110}, faults: 1},
		{name: "the latter has a short standing", rates: [2]time.Duration{slow, fast}, standings: [2]time.Duration{110, 44}, faults: 1},
		{name: "the key is deleted by hand", rates: [2]time.Duration{slow, fast}, standings: [2]time.Duration{110, 110}, faults: 1, deletion: true},
		{name: "messages are late", rates: [2]time.Duration{slow, fast}, standings: [2]time.Duration{110, 110}, faults: 2, steady: true},
	} {
		if explore.Whole() {
			s.faults++
		}
		t.Run(s.name, func(t *testing.T) { explore.Check(t, s.model(), explore.Limits{}) })
	}
}

// Stories that broke a property once.
func TestStoriesOfTwoProcessesThatBrokeAProperty(t *testing.T) {
	for _, story := range []struct {
		name  string
		scope scope
		moves []explore.Move
	}{
		{"the first transaction of all arrives after another process has served, and an operator has deleted the key", scope{rates: [2]time.Duration{10, 11}, standings: [2]time.Duration{110, 110}, faults: 3, deletion: true},
			[]explore.Move{{Kind: act}, {Kind: deliver}, {Kind: deliver}, {Kind: hold}, {Kind: lead, A: 1},
				{Kind: act, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: act, A: 1},
				{Kind: deleted}, {Kind: deliver}, {Kind: deliver}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: deliver, A: 1}, {Kind: act}}},
	} {
		steps, err := story.scope.model().Replay(story.moves)
		if errors.Is(err, errBroken) {
			t.Errorf("%s:\n%q\n%v", story.name, steps, err)
		}
	}
}

// The explorer's times are too short for it: a claim says so for as long as a client may believe in a lease.
func TestAClaimForgetsThatAProcessFellSilent(t *testing.T) {
	for left, silent := range map[time.Duration]bool{-statestore.SilentFor + 1: true, -statestore.SilentFor: false} {
		if b := (claim{Silent: true}).resign(left); !b.Resigned || b.Silent != silent {
			t.Errorf("%v left: %+v", left, b)
		}
	}
}
