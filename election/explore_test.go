package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/explore"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// This is a walk through every state of two electors at one store. The decisions are those of the program: phases
// (what Run does next, and why a term ends), vitals (health), stance (what a request makes a node do),
// failBackRequest.replaces, and the text of requests with its parsers. The world around them is made of integers:
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
	state  string // of a switchover; "rank": a fail-back request; "": nothing; "x": garbage
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
	case "rank":
		text = failBackRequest{nodeName(n.by), int(n.by)}.String()
	case switchoverAsked, switchoverReady, switchoverRefused:
		text = switchover{nodeName(n.by), n.state, tenureName(n.tenure), nodeName(n.to)}.String()
	}
	return transport.Entry{Exists: true, Value: []byte(text)}
}

// electorState is one node.
type electorState struct {
	phases phases
	vitals vitals
	up     bool
	frozen bool

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
	over    uint8 // until the delay is that of the rank
	owes    uint8 // ticks that have to pass before the next campaign
	sick    uint8 // checks that failed in a row
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
		o[i] = Options{TTL: modelTTL, HoldOff: 3, RankDelay: 1, Rank: i, FailBackAfter: modelTTL, HealthFailures: i + 1}
		if err := o[i].complete(); err != nil {
			panic(err)
		}
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
)

// stance is what Elector.stance returns.
func (w *world) stance(i uint8) stance {
	n := &w.nodes[i]
	s := stance{options: &modelOptions[i], clientID: nodeName(i), holder: nodeName(i), holds: n.tenure != 0, campaigning: n.phases.step == campaign}
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
		if step := n.phases.step; (step == await || step == ready || step == drain) && n.up && !n.frozen && w.goesOn(i) {
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
	case n.sick > 0:
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
	case claim, activate:
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
	if n.sick < 2 {
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
	return []note{{}, {state: "x"}, {state: "rank"}, {state: switchoverReady, by: 1 - i, to: 1 - i, tenure: w.tenure},
		{state: switchoverAsked, by: operator, to: i, tenure: w.tenure}}
}

// goesOn reports whether the step of a node is at its end.
func (w *world) goesOn(i uint8) bool {
	switch n := &w.nodes[i]; n.phases.step {
	case await:
		return n.vitals.healthy
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

// do carries a move out.
func (w *world) do(m explore.Move) error {
	i := m.A
	n := &w.nodes[i]
	if m.Kind >= fails && m.Kind < resign {
		w.faults--
		w.calm()
	} else if m.Kind >= resign && m.Kind < recall {
		w.wishes--
		w.calm()
	}
	switch m.Kind {
	case tick:
		w.pass()
	case goOn:
		w.goOn(i, m.B == 1, nil)
	case fails:
		w.goOn(i, false, [...]error{errRefused, transport.ErrClosed}[m.B])
	case fire:
		n.end(n.lost)
	case deliver, lose:
		heard := n.notes[m.B]
		n.notes = slices.Delete(n.notes, int(m.B), int(m.B)+1)
		if m.Kind == deliver {
			w.heed(i, heard, notified)
		}
	case repeat:
		n.hear(n.notes[m.B])
	case forge:
		n.hear(w.forgeries(i)[m.B])
	case act:
		from := confirmed
		if n.readDue {
			from = due
		}
		n.hasRead, n.readDue = false, false
		w.heed(i, n.read, from)
		n.read = note{}
	case place:
		own := note{state: "rank", by: i}
		if w.key == (note{}) || w.key == own || (failBackRequest{nodeName(i), int(i)}).replaces(w.key.entry()) {
			w.set(own, modelTTL)
		}
		n.ask, n.asks = modelTTL/3, true
	case withdraw, lapse:
		n.leaving = false
		if m.Kind == withdraw && w.key == (note{state: "rank", by: i}) {
			w.set(note{}, 0)
		}
	case answers:
		n.answer, n.read, n.hasRead, n.readDue = 0, w.key, true, true
	case comes, returns:
		if n.function = 0; m.B == 1 {
			n.returned = errMotor
		}
		n.came = true
	case dawdle:
		n.function = 2
	case cut:
		n.stuck = true
	case taken:
		n.lost, n.left = lease.ErrLost, 0 // it is noticed at once
		w.release(i)
	case freeze, thaw:
		n.frozen = m.Kind == freeze
		w.heirs &^= 1 << i
	case crash:
		w.heirs &^= 1 << i
		*n = electorState{notes: nil}
	case restart:
		w.boot(i)
	case recovers, sicken:
		w.check(i, m.Kind == sicken)
	case resign:
		n.end(ErrResigned)
	case ask:
		w.asking = note{switchoverAsked, operator, n.tenure, m.B}
		w.set(w.asking, askedTTL)
		if to := &w.nodes[min(m.B, 1-i)]; n.phases.step == lead && to.up && !to.frozen && to.period == nil && to.phases.step == campaign {
			w.asked = 1
		}
	case recall:
		if w.key == w.asking {
			w.set(note{}, 0)
		}
		w.asked, w.asking = 0, note{}
	}
	return w.broken
}

// calm begins to count anew what has to happen without further faults.
func (w *world) calm() {
	w.vacant, w.asked = 0, 0
	for i := range w.nodes {
		w.nodes[i].waited, w.nodes[i].idle = 0, 0
	}
}

func (w *world) boot(i uint8) {
	n := &w.nodes[i]
	*n = electorState{up: true, phases: phases{options: &modelOptions[i]}, delay: i}
	n.vitals = n.vitals.next(nil, modelOptions[i].HealthFailures)
	var crashed error
	if w.giver == i+1 { // it knows nothing of that
		w.giver = 0
	}
	if w.owner == i {
		crashed = ErrCrashed
		w.gives(i)
		n.owes = modelTTL
	}
	w.next(i, result{err: crashed})
}

// gives notes that a node gave the lease up, or lost it in a crash: those that wait get it first.
func (w *world) gives(i uint8) {
	w.giver, w.heirs = i+1, 0
	for j := range w.nodes {
		if n := &w.nodes[j]; uint8(j) != i && n.up && !n.frozen && n.phases.step == campaign {
			w.heirs |= 1 << j
		}
	}
}

// end ends the context of a term, once.
func (n *electorState) end(cause error) {
	if n.tenure == 0 || n.ended != nil {
		return
	}
	n.ended = cause
	switch n.function {
	case 1:
		n.function = 3
	case 2:
		n.function = 3 + modelTTL + 2
	}
}

// hear has a note delivered. Notes are delivered in any order, so they are kept in one.
func (n *electorState) hear(heard note) {
	at, _ := slices.BinarySearchFunc(n.notes, heard, func(a, b note) int {
		return cmp.Or(cmp.Compare(a.state, b.state), cmp.Compare(a.by, b.by), cmp.Compare(a.tenure, b.tenure), cmp.Compare(a.to, b.to))
	})
	n.notes = slices.Insert(n.notes, at, heard)
}

// set writes the key; each node that runs is to be notified.
func (w *world) set(n note, ttl uint8) {
	w.key, w.keyLeft = n, ttl
	for i := range w.nodes {
		if e := &w.nodes[i]; e.up {
			e.hear(n)
		}
	}
}

func (w *world) release(i uint8) {
	if w.owner == i {
		w.owner, w.left = nodes, 0
	}
}

// check is a health check.
func (w *world) check(i uint8, failed bool) {
	n := &w.nodes[i]
	var err error
	n.sick = 0
	if failed {
		err, n.sick = errMotor, min(w.nodes[i].sick+1, 2)
	}
	was := n.vitals
	n.vitals = was.next(err, modelOptions[i].HealthFailures)
	if n.vitals.healthy != (n.sick == 0 || int(n.sick) < modelOptions[i].HealthFailures && was.healthy) {
		w.breach(25, "%s: healthy is %t after %d failures", nodeName(i), n.vitals.healthy, n.sick)
	}
	if was.healthy && !n.vitals.healthy {
		n.period = n.vitals.cause
		n.end(n.period)
	}
}

// heed makes a node do what the program decides about a note.
func (w *world) heed(i uint8, said note, from source) {
	n := &w.nodes[i]
	s := w.stance(i)
	do := s.heed(said.entry(), from)
	if from == notified && do > confirm {
		w.breach(26, "%s believes a notification", nodeName(i))
	}
	switch do {
	case confirm:
		n.read, n.hasRead = w.key, true
	case yield:
		if n.age < modelTTL || said.state != "rank" || said.by >= i {
			w.breach(26, "%s yields after %d ticks to %v", nodeName(i), n.age, said)
		}
		n.end(&YieldError{To: nodeName(said.by), Rank: int(said.by)})
	case handOver:
		if said.tenure != n.tenure || said.state != switchoverReady {
			w.breach(26, "%s hands over for %v", nodeName(i), said)
		}
		n.end(ErrSwitchover)
	case answer:
		if n.phases.step != campaign || !n.vitals.healthy {
			w.breach(25, "%s says that it is ready", nodeName(i))
		}
		w.set(note{switchoverReady, i, said.tenure, i}, modelTTL+modelTTL/2)
	case answerSoon:
		if n.answer == 0 {
			n.answer = i + 1
		}
	case compete, goFirst, goLater:
		n.delay, n.over = uint8(s.acquireDelay(do)), modelTTL+modelTTL/2
	}
}

// goOn ends the step under way.
func (w *world) goOn(i uint8, other bool, err error) {
	n := &w.nodes[i]
	r := result{err: err, random: 0.5, ended: n.period}
	switch n.phases.step {
	case await:
		n.period = nil
		r.ended = nil
	case campaign:
		if err == nil && n.period != nil && !other {
			r.err = n.period
		}
		if r.err == nil {
			w.acquire(i)
		}
		if n.asks {
			n.leaving = true
		}
		n.asks = false
	case lead:
		if other {
			r.returned, r.err, n.came = true, n.returned, false
		}
	case stop:
		n.end(n.phases.cause)
	case drain:
		if n.came {
			r.err, n.came = n.returned, false
		}
	case release:
		if err != nil {
			n.kept = true
			return
		}
		n.lost = cmp.Or(n.lost, lease.ErrReleased)
		w.release(i)
		w.asked = 0
	}
	if n.tenure != 0 {
		r.ended, r.lost = n.ended, n.lost
		if n.left == 0 {
			r.over = n.lost
		}
	}
	w.next(i, r)
}

// acquire gives a node the lease.
func (w *world) acquire(i uint8) {
	n := &w.nodes[i]
	if w.giver == i+1 && w.heirs != 0 {
		w.breach(29, "%s leads again, and others waited", nodeName(i))
	}
	w.giver, w.heirs = 0, 0
	w.tenure++
	w.owner, w.left = i, modelTTL
	n.tenure, n.left, n.stuck, n.lost, n.ended, n.first, n.age = w.tenure, modelTTL-1, false, nil, n.period, nil, 0
}

// next asks the program what a node does then, and begins it.
func (w *world) next(i uint8, r result) {
	n := &w.nodes[i]
	before := n.phases.step
	if before == campaign && r.err != nil {
		w.heirs &^= 1 << i
	}
	n.phases = n.phases.next(time.Duration(w.now), r)
	if errors.Is(r.err, transport.ErrClosed) && n.phases.step != finish {
		w.breach(50, "%s goes on with a client that is closed", nodeName(i))
	}
	switch p := n.phases; p.step {
	case await:
		if before == release || before == campaign && r.err != nil && r.ended == nil {
			w.failed(i, before == campaign)
		}
		if before == release {
			*n = electorState{phases: n.phases, vitals: n.vitals, up: true, period: n.period, notes: n.notes, sick: n.sick,
				delay: n.delay, over: n.over, leaving: n.leaving, owes: n.owes, inVain: n.inVain}
		}
	case stayOut:
		n.wait = uint8(p.rest)
	case campaign:
		if n.owes > 0 {
			w.breach(28, "%s campaigns %d ticks too early", nodeName(i), n.owes)
		}
		n.ask, n.sees = modelTTL, 0
	case activate:
		n.announced = true
	case lead:
		if n.function != 0 {
			w.breach(8, "%s calls its function while that runs", nodeName(i))
		}
		if n.left == 0 || n.ended != nil {
			w.breach(2, "%s begins a term that is over", nodeName(i))
		}
		n.function, n.hold, n.yields = 1, uint8(modelOptions[i].holdDown()), false
	case drain:
		w.over(i)
		n.stuck = true
	case release:
		if n.function != 0 {
			w.breach(8, "%s frees the lease while its function runs", nodeName(i))
		}
		w.over(i)
	case finish:
		if !errors.Is(p.cause, transport.ErrClosed) {
			w.breach(50, "Run of %s returned %v", nodeName(i), p.cause)
		}
		n.up = false
	}
}

// over checks why a term is over.
func (w *world) over(i uint8) {
	n := &w.nodes[i]
	cause := n.phases.cause
	switch {
	case cause == nil:
		w.breach(9, "a term of %s ends without a cause", nodeName(i))
	case n.first != nil && cause != n.first:
		w.breach(9, "a term of %s ends with %v after %v", nodeName(i), cause, n.first)
	case n.first != nil:
	case n.left == 0 && !errors.Is(cause, n.lost), n.phases.step == drain && !errors.Is(cause, n.ended) && n.function != 0:
		w.breach(9, "a term of %s ends with %v, and its tenure with %v after its context with %v", nodeName(i), cause, n.lost, n.ended)
	}
	n.first = cause
}

// failed notes how long a node has to stay out, by the words of the documents.
func (w *world) failed(i uint8, campaignFailed bool) {
	n := &w.nodes[i]
	short := campaignFailed || n.age < modelTTL
	if !short {
		n.inVain = 0
	}
	if short || errors.Is(n.lost, lease.ErrReleased) {
		if n.owes = 3 << min(n.inVain, 3); n.phases.rest != time.Duration(n.owes) {
			w.breach(28, "%s is to stay out for %d ticks and not %d", nodeName(i), n.owes, n.phases.rest)
		}
		n.inVain = min(n.inVain+1, 4)
		w.gives(i)
	}
}

// pass lets a tick pass, and looks for what has to have happened by now.
func (w *world) pass() {
	w.now++
	if w.keyLeft > 0 {
		if w.keyLeft--; w.keyLeft == 0 {
			w.set(note{}, 0)
		}
	}
	if w.owner == nodes || w.asking.tenure != w.tenure {
		w.asking = note{}
	}
	if w.asking != (note{}) && (w.key.state != switchoverReady || w.keyLeft < modelTTL+modelTTL/2-1) {
		w.set(w.asking, askedTTL)
	}
	renewed := false
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.tenure != 0 && n.left > 0 {
			if !n.stuck && !n.frozen {
				n.left, renewed = modelTTL-1, true
			} else if n.left--; n.left <= 1 && n.lost == nil {
				n.lost = lease.ErrDeadlinePassed
			}
		}
	}
	if w.owner < nodes && !renewed {
		if w.left--; w.left == 0 {
			w.owner = nodes
		}
	} else if renewed {
		w.left = modelTTL
	}
	for i := range w.nodes {
		w.timers(uint8(i), &w.nodes[i])
	}
	w.count()
}

// timers lets the timers of a node run.
func (w *world) timers(i uint8, n *electorState) {
	for _, left := range []*uint8{&n.wait, &n.ask, &n.owes} {
		*left -= min(*left, 1)
	}
	n.age = min(n.age+1, modelTTL)
	if n.sees = min(n.sees+1, modelTTL); n.phases.step != campaign || w.owner != nodes {
		n.sees = 0
	}
	if n.answer > 1 {
		n.answer--
	}
	if n.over > 0 {
		if n.over--; n.over == 0 {
			n.delay = uint8(modelOptions[i].Lease.AcquireDelay)
		}
	}
	if n.function > 3 && !n.frozen {
		n.function--
	}
	if n.phases.step == lead && i > 0 && !n.frozen {
		if n.hold--; n.hold == 0 {
			n.hold, n.yields, n.read, n.hasRead = modelTTL, true, w.key, true
		}
	}
}

// count counts what has to happen without further faults.
func (w *world) count() {
	leads, waits := false, false
	for i := range w.nodes {
		n := &w.nodes[i]
		step := n.phases.step
		if !n.up || n.frozen || !n.vitals.healthy {
			n.idle, n.waited = 0, 0
			continue
		}
		leads = leads || step == lead
		waits = waits || step == campaign
		if n.idle++; step >= campaign && step <= lead {
			n.idle = 0
		}
		if n.waited++; step != campaign || i > 0 {
			n.waited = 0
		}
		if n.sees > uint8(i)+modelTTL/4 {
			w.breach(25, "the lease is free, and %s has waited for %d ticks", nodeName(uint8(i)), n.sees)
		}
		if n.idle > maxIdle {
			w.breach(25, "%s is healthy, and has not campaigned for %d ticks", nodeName(uint8(i)), n.idle)
		}
		if n.waited > maxWaited {
			w.breach(25, "%s is preferred, and has waited for %d ticks", nodeName(uint8(i)), n.waited)
		}
	}
	if w.vacant++; leads || !waits {
		w.vacant = 0
	}
	if w.vacant > maxVacant {
		w.breach(25, "a candidate waits, and none has led for %d ticks", w.vacant)
	}
	if w.asked > 0 {
		if w.asked++; w.asked > maxAsked {
			w.breach(25, "the leader does not hand over though a candidate is ready")
		}
	}
}

// Bounds, in ticks since the last fault.
const (
	maxIdle   = maxHoldOff*3 + 2*modelTTL
	maxWaited = 4 * modelTTL
	maxVacant = modelTTL + 2
	maxAsked  = 3
)

var marks = []error{ErrReturned, ErrResigned, ErrUnhealthy, ErrYielded, ErrSwitchover, ErrCrashed, lease.ErrDeadlinePassed, lease.ErrLost,
	lease.ErrReleased, errMotor, errRefused}

// mark appends what an error says.
func mark(key []byte, err error) []byte {
	if err == nil {
		return append(key, 0, 0)
	}
	bits := uint16(1 << 15)
	if b := slices.Index(marks, err); b >= 0 {
		return append(key, byte(b), 1)
	}
	for b, target := range marks {
		if errors.Is(err, target) {
			bits |= 1 << b
		}
	}
	return append(key, byte(bits), byte(bits>>8))
}

// tell appends a note. The tenures that it names are told apart only as far as that matters.
func (w *world) tell(key []byte, n note) []byte {
	which := byte(0)
	if n.tenure != 0 {
		for i := range w.nodes {
			if w.nodes[i].tenure == n.tenure {
				which |= 1 << i
			}
		}
		if n.tenure == w.tenure && w.owner != nodes {
			which |= 1 << 7
		}
	}
	return append(append(key, n.state...), 0, n.by, n.to, which)
}

func flags(bits ...bool) (b byte) {
	for i, set := range bits {
		if set {
			b |= 1 << i
		}
	}
	return b
}

func (w *world) encode(key []byte) []byte {
	key = append(key, w.owner, w.left, w.keyLeft, w.faults, w.wishes, w.vacant, w.giver, w.heirs, w.asked)
	key = w.tell(w.tell(key, w.key), w.asking)
	for i := range w.nodes {
		n := &w.nodes[i]
		p := &n.phases
		held := flags(n.up, n.frozen, n.came, n.announced, n.stuck, n.yields, n.asks, n.leaving)
		lasted := byte(0)
		if n.tenure != 0 {
			lasted = byte(min(time.Duration(w.now)-p.began, modelTTL))
		}
		key = append(key, held, flags(n.hasRead, n.readDue, n.kept, p.taken, n.vitals.healthy, n.first != nil), byte(p.step), byte(p.rest), byte(p.holdOff), lasted,
			n.wait, n.sees, n.function, n.left, n.hold, n.age, n.ask, n.answer, n.delay, n.over, n.owes, n.sick, n.inVain, n.waited, n.idle,
			byte(n.vitals.failed), byte(len(n.notes)))
		for _, err := range []error{p.cause, n.ended, n.lost, n.period, n.returned} {
			key = mark(key, err)
		}
		key = w.tell(key, n.read)
		for _, heard := range n.notes {
			key = w.tell(key, heard)
		}
	}
	return key
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

var stepNames = [...]string{"look", "await", "stay out", "campaign", "ready", "claim", "activate", "lead", "stop", "drain", "release", "finish"}

func TestExploreElectors(t *testing.T) {
	scopes := [][2]uint8{{1, 0}, {0, 1}}
	if os.Getenv("EXPLORE") != "" {
		scopes = [][2]uint8{{1, 1}, {2, 0}}
	}
	for _, scope := range scopes {
		result, err := electors(scope[0], scope[1]).Walk(context.Background(), explore.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("scope E, %d faults and %d wishes: %v", scope[0], scope[1], result)
		if result.Violation != nil {
			t.Fatalf("a property is broken:\n%v", result.Violation)
		}
	}
}
