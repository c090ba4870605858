package election

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/explore"
	"github.com/tenurelock/tenure/transport"
)

// This is a walk through every state of two electors at one store. The decisions are those of the program: phases
// (what Run does next, and why a term ends), stance (what a request makes a node do), and
// request.replaces and its text with its parser. The world around them is made of integers:
//
//   - The lease is exact: TTL ticks in the store, one tick less for its holder, whose context ends one tick before that.
//     It is renewed while nothing stops that. Package lease is checked by a walk of its own.
//   - What is due happens before time passes, in any order; each notification is delivered, or a fault loses it.
//     A read of the key is answered at once; what the answer makes the node do comes later.
//   - A fault takes one of the faults left: see the moves below. A wish of an operator takes one of the wishes left.
//
// Checked are the invariants 2, 8, 9, 25, 26, 28, 29 and 50 of docs/invariants.md: see check, and where breach is called.
// To add an event: a kind, its line in names, where it is possible in moves, and what it does in do. To add a
// property: call breach where it can be seen, or look at all of the state in check. What a property
// remembers belongs into key.
//
// Tokens, the observer and the logger are left out: nothing is decided by them. Two old tenures are the same to every
// node that did not have them, so the key tells a tenure only from the present one and from those that nodes still have.

const (
	nodes    = 2
	modelTTL = 6
	operator = 7 // the client that asks for switchovers
	askedTTL = 3
)

// What can happen. A is the node.
const (
	tick     = iota
	goOn     // the step under way comes to its end; B: 1: of two things that ended it, the other: the function returned, or the lease was acquired
	fire     // the term learns that its tenure's context ended
	deliver  // B: of the notifications, that one
	act      // on what the key held
	place    // a fail-back request is written or refreshed
	withdraw // and deleted
	answers  // the time for an answer has come
	comes    // the function returns
	restart
	thaw
	recovers // a check succeeds
	fails    // fault: the step under way fails; B: 1: because the client is closed
	returns  // fault: the function returns by itself; B: 1: an error
	dawdle   // fault: the function will not return before the tenure is over
	cut      // fault: the tenure is not renewed any more
	taken    // fault: the lease's key is deleted
	freeze   // fault
	crash    // fault
	sicken   // fault: a check fails
	lose     // fault: a notification, B
	repeat   // fault: a notification, B
	forge    // fault: a notification; B: of what
	lapse    // fault: the deletion of a fail-back request is lost
	resign   // wish
	ask      // wish: a switchover; B: to that node, or nodes: to any
	recall   // the operator withdraws it
)

var names = [...]string{"a tick passes", "goes on", "learns that its tenure's context ended", "gets a notification", "acts on what it read",
	"places its fail-back request", "withdraws it", "finds that its answer is due", "returns from its function", "restarts", "thaws", "is found healthy",
	"fails", "returns by itself", "will not return in time", "can renew no more", "has its lease deleted", "freezes", "crashes", "is found sick",
	"misses a notification", "gets a notification twice", "gets a forged notification", "cannot delete its request", "resigns",
	"is asked to hand over", "is asked no more"}

// note is what the key of requests holds, or a notification says.
type note struct {
	state  state // "": nothing; "x": garbage
	by     uint8
	tenure uint8
	to     uint8
}

func nodeName(i uint8) string {
	if i == nodes {
		return ""
	}
	return string('a' + rune(i))
}

func tenureName(t uint8) string { return fmt.Sprintf("tenure-%d", t) }

// entry is the note in the words of the program.
func (n note) entry() transport.Entry {
	text := "garbage"
	switch n.state {
	case "":
		return transport.Entry{}
	case preferred:
		text = ownRequest(n.by).String()
	case asked, ready:
		text = request{clientID: nodeName(n.by), state: n.state, tenure: tenureName(n.tenure), to: nodeName(n.to)}.String()
	}
	return transport.Entry{Exists: true, Value: []byte(text)}
}

// ownRequest is the fail-back request of a node.
func ownRequest(i uint8) request {
	return request{clientID: nodeName(i), state: preferred, rank: int(i)}
}

// electorState is one node.
type electorState struct {
	phases  phases
	healthy bool
	up      bool
	frozen  bool

	wait      uint8 // ticks of the rest
	sees      uint8 // ticks in which it waited and the lease was free
	function  uint8 // 0: does not run; 1: runs; 2: runs, and will return late; from 3: has to return, in so many ticks less 3
	period    error // why the healthy period of the step under way is over
	returned  error // what it returned, if it has
	came      bool  // it returned, and the program does not know yet
	ended     error // of the term's context
	first     error // why the term is over, as the observer got it first
	announced bool  // the observer got Active

	tenure uint8 // the value of the tenure, until it is released; 0: none
	left   uint8 // until it is over
	stuck  bool  // it is not renewed
	kept   bool  // the store does not hear of the release: package lease repeats it until the lease has expired
	lost   error

	yields bool
	hold   uint8 // until the leader looks for requests
	age    uint8 // of the term, up to the hold-down

	ask     uint8 // until a fail-back request is placed or refreshed
	asks    bool  // the request may be in the key
	leaving bool  // it is to be deleted
	notes   []note
	read    note
	hasRead bool
	readDue bool
	answer  uint8 // until an answer is due, plus one; 0: none is
	delay   uint8
	over    uint8 // ticks until the rank decides the delay again
	owes    uint8 // ticks that have to pass before the next campaign
	inVain  uint8 // short terms and failed campaigns in a row
	waited  uint8 // ticks that it waits though it is preferred, since the last fault
	idle    uint8 // ticks that it did not campaign or lead though it is healthy, since the last fault
}

// world is a state.
type world struct {
	nodes          [nodes]electorState
	now            uint16
	tenure         uint8 // the latest
	owner          uint8 // of the lease; nodes: it is free
	left           uint8 // until it expires
	key            note
	keyLeft        uint8
	faults, wishes uint8
	vacant         uint8 // ticks without a leader since the last fault, though a healthy node is there
	giver          uint8 // that gave the lease up, plus one; 0: none
	heirs          uint8 // which wait since then
	asking         note  // the operator repeats it in each tick
	asked          uint8 // ticks since a switchover that has to succeed, plus one; 0: there is none
	broken         error
}

var modelOptions = func() (o [nodes]Options) {
	for i := range o {
		o[i] = Options{TTL: modelTTL, HoldOff: 3, Rank: i, FailBackAfter: modelTTL}
		if err := o[i].complete(); err != nil {
			panic(err)
		}
		o[i].Lease.Holder = nodeName(uint8(i))
		o[i].Lease.AcquireDelay = time.Duration(i) // the TTL is too short for a share of it
	}
	return o
}()

func (w *world) breach(invariant int, format string, values ...any) {
	if w.broken == nil {
		w.broken = fmt.Errorf("invariant %d: "+format, append([]any{invariant}, values...)...)
	}
}

var (
	errRefused = errors.New("refused")
	errMotor   = errors.New("the motor is hot")
	errSick    = fmt.Errorf("%w: %w", ErrUnhealthy, errMotor)
)

// stance is what Elector.stance returns.
func (w *world) stance(i uint8) stance {
	n := &w.nodes[i]
	s := stance{options: &modelOptions[i], clientID: nodeName(i), holds: n.tenure != 0, campaigning: n.phases.step == campaign && n.period == nil}
	if n.announced {
		s.tenure, s.yields = tenureName(n.tenure), n.yields
	}
	return s
}

// moves appends first what is due: while anything is, time does not pass. The end of some steps of a node changes nothing
// that another node sees, and no notification has another effect after it than before. So what other nodes do, which
// can happen after it as well, is left out then.
func (w *world) moves(moves []explore.Move) []explore.Move {
	add := func(kind, a, b uint8) { moves = append(moves, explore.Move{Kind: kind, A: a, B: b}) }
	for i := range uint8(nodes) {
		n := &w.nodes[i]
		if step := n.phases.step; (step == await || step == drain) && n.up && !n.frozen && w.goesOn(i) {
			w.due(i, n, add)
			w.others(i, n, add)
			return moves
		}
	}
	for i := range uint8(nodes) {
		if n := &w.nodes[i]; n.up && !n.frozen {
			w.due(i, n, add)
		}
	}
	if len(moves) == 0 {
		add(tick, 0, 0)
	}
	for i := range uint8(nodes) {
		w.others(i, &w.nodes[i], add)
	}
	if w.asking != (note{}) {
		add(recall, w.owner%nodes, 0)
	}
	return moves
}

// others appends what can happen to a node besides: a fault, a wish, the end of a fault.
func (w *world) others(i uint8, n *electorState, add func(kind, a, b uint8)) {
	switch {
	case !n.up:
		if n.phases.step != finish {
			add(restart, i, 0)
		}
		return
	case n.frozen:
		add(thaw, i, 0)
		return
	case !n.healthy:
		add(recovers, i, 0)
	}
	if w.wishes > 0 && n.announced && n.ended == nil {
		add(resign, i, 0)
		for to := range uint8(nodes + 1) {
			if to != i && w.owner == i {
				add(ask, i, to)
			}
		}
	}
	if w.faults > 0 {
		w.mishaps(i, n, add)
	}
}

// due appends what a node does next.
func (w *world) due(i uint8, n *electorState, add func(kind, a, b uint8)) {
	if w.goesOn(i) {
		add(goOn, i, 0)
	}
	if n.phases.step == lead && n.came || n.phases.step == campaign && n.period != nil && w.owner == nodes {
		add(goOn, i, 1)
	}
	if n.tenure != 0 && n.lost != nil && n.ended == nil {
		add(fire, i, 0)
	}
	for b := range n.notes {
		add(deliver, i, uint8(b))
	}
	if n.hasRead {
		add(act, i, 0)
	}
	if n.phases.step == campaign && n.ask == 0 {
		add(place, i, 0)
	}
	if n.leaving {
		add(withdraw, i, 0)
	}
	if n.answer == 1 && !n.hasRead {
		add(answers, i, 0)
	}
	if n.function == 3 {
		add(comes, i, 0)
	}
}

// mishaps appends what can go wrong at a node that runs.
func (w *world) mishaps(i uint8, n *electorState, add func(kind, a, b uint8)) {
	switch n.phases.step {
	case campaign:
		add(fails, i, 0)
		add(fails, i, 1)
	case claim:
		add(fails, i, 0)
	case release:
		if w.owner == i && !n.kept {
			add(fails, i, 0)
		}
	case lead:
		if n.function == 1 {
			add(returns, i, 0)
			add(returns, i, 1)
			add(dawdle, i, 0)
		}
	}
	if n.tenure != 0 && n.lost == nil {
		if !n.stuck {
			add(cut, i, 0)
		}
		add(taken, i, 0)
	}
	add(freeze, i, 0)
	add(crash, i, 0)
	if n.healthy {
		add(sicken, i, 0)
	}
	for b := range n.notes {
		add(lose, i, uint8(b))
		add(repeat, i, uint8(b))
	}
	for b := range uint8(len(w.forgeries(i))) {
		add(forge, i, b)
	}
	if n.leaving {
		add(lapse, i, 0)
	}
}

// forgeries are the notes that another client could send to a node.
func (w *world) forgeries(i uint8) []note {
	return []note{{}, {state: "x"}, {state: preferred}, {state: ready, by: 1 - i, to: 1 - i, tenure: w.tenure},
		{state: asked, by: operator, to: i, tenure: w.tenure}}
}

// goesOn reports whether the step of a node is at its end.
func (w *world) goesOn(i uint8) bool {
	switch n := &w.nodes[i]; n.phases.step {
	case await:
		return n.healthy
	case stayOut:
		return n.wait == 0 || n.period != nil
	case campaign:
		return n.period != nil || w.owner == nodes && n.sees >= n.delay
	case lead:
		return n.ended != nil
	case drain:
		return n.function == 0
	case release:
		return !n.kept || w.owner != i
	case finish:
		return false
	default:
		return true
	}
}

func electors(faults, wishes uint8) explore.Model[*world] {
	return explore.Model[*world]{
		Start: func() *world {
			w := &world{owner: nodes, faults: faults, wishes: wishes}
			for i := range w.nodes {
				w.boot(uint8(i))
			}
			return w
		},
		Copy: func(w *world) *world {
			c := *w
			for i := range c.nodes {
				c.nodes[i].notes = append([]note(nil), w.nodes[i].notes...)
			}
			return &c
		},
		Moves: func(w *world, moves []explore.Move) []explore.Move { return w.moves(moves) },
		Do:    func(w *world, m explore.Move) error { return w.do(m) },
		Describe: func(w *world, m explore.Move) string {
			text := names[m.Kind]
			if m.Kind == tick {
				return text
			}
			n := &w.nodes[m.A]
			switch m.Kind {
			case goOn, fails:
				text = fmt.Sprintf("%s (%s)", text, stepNames[n.phases.step])
			case deliver, lose, repeat:
				text = fmt.Sprintf("%s: %v", text, n.notes[m.B])
			case forge:
				text = fmt.Sprintf("%s: %v", text, w.forgeries(m.A)[m.B])
			case act:
				text = fmt.Sprintf("%s: %v", text, n.read)
			}
			return nodeName(m.A) + " " + text
		},
		Key: func(w *world, key []byte) []byte { return w.encode(key) },
	}
}

var stepNames = [...]string{"look", "await", "stay out", "campaign", "claim", "lead", "drain", "release", "finish"}

func TestExploreElectors(t *testing.T) {
	for _, s := range []struct {
		name           string
		faults, wishes uint8
		limits         explore.Limits
	}{
		{name: "a fault", faults: 1},
		{name: "a wish", wishes: 1},
		{"a fault and a wish", 1, 1, explore.Limits{States: 2_000_000}}, // about a GB of memory
		{"two faults", 2, 0, explore.Limits{States: 2_000_000}},
	} {
		if s.limits.States > 0 && !explore.Whole() {
			continue
		}
		t.Run(s.name, func(t *testing.T) { explore.Check(t, electors(s.faults, s.wishes), s.limits) })
	}
}
