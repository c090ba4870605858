package election

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/explore"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// What happens in the world of explore_test.go, and what is checked then.

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
	case deliver, lose, repeat, forge:
		w.news(i, m)
	case act:
		from := confirmed
		if n.readDue {
			from = due
		}
		n.hasRead, n.readDue = false, false
		w.obey(i, n.read, from)
		n.read = note{}
	case place:
		if ownRequest(i).replaces(parseRequest(w.key.entry())) {
			w.set(note{state: preferred, by: i}, modelTTL)
		}
		n.ask, n.asks = modelTTL/3, true
	case withdraw, lapse:
		n.leaving = false
		if m.Kind == withdraw && w.key == (note{state: preferred, by: i}) {
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
		w.asking = note{asked, operator, n.tenure, m.B}
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

// news is what happens to a notification.
func (w *world) news(i uint8, m explore.Move) {
	n := &w.nodes[i]
	switch m.Kind {
	case deliver, lose:
		heard := n.notes[m.B]
		n.notes = slices.Delete(n.notes, int(m.B), int(m.B)+1)
		if m.Kind == deliver {
			w.obey(i, heard, notified)
		}
	case repeat:
		n.hear(n.notes[m.B])
	case forge:
		n.hear(w.forgeries(i)[m.B])
	}
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
	*n = electorState{up: true, healthy: true, phases: phases{options: &modelOptions[i]}, delay: i}
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
	if n.healthy = !failed; failed {
		n.period = errSick
		n.end(n.period)
	}
}

// obey makes a node do what the program decides about a note.
func (w *world) obey(i uint8, said note, from source) {
	n := &w.nodes[i]
	s := w.stance(i)
	do := s.decide(parseRequest(said.entry()), from)
	if from == notified && do > confirm {
		w.breach(26, "%s believes a notification", nodeName(i))
	}
	switch do {
	case confirm:
		n.read, n.hasRead = w.key, true
	case yield:
		if n.age < modelTTL || said.state != preferred || said.by >= i {
			w.breach(26, "%s yields after %d ticks to %v", nodeName(i), n.age, said)
		}
		n.end(ErrYielded)
	case handOver:
		if said.tenure != n.tenure || said.state != ready {
			w.breach(26, "%s hands over for %v", nodeName(i), said)
		}
		n.end(ErrSwitchover)
	case answer:
		if n.phases.step != campaign || !n.healthy {
			w.breach(25, "%s says that it is ready", nodeName(i))
		}
		w.set(note{ready, i, said.tenure, i}, modelTTL+modelTTL/2)
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
			if n.left == 0 {
				r.over = n.lost
			}
			n.end(r.returned(n.returned))
		}
	case drain:
		n.came = false
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
			*n = electorState{phases: n.phases, healthy: n.healthy, up: true, period: n.period, notes: n.notes,
				delay: n.delay, over: n.over, leaving: n.leaving, owes: n.owes, inVain: n.inVain}
		}
	case stayOut:
		n.wait = uint8(p.rest)
	case campaign:
		if n.owes > 0 {
			w.breach(28, "%s campaigns %d ticks too early", nodeName(i), n.owes)
		}
		n.ask, n.sees = modelTTL, 0
	case lead:
		if n.function != 0 {
			w.breach(8, "%s calls its function while that runs", nodeName(i))
		}
		if n.left == 0 || n.ended != nil {
			w.breach(2, "%s begins a term that is over", nodeName(i))
		}
		n.announced, n.function, n.hold, n.yields = true, 1, uint8(modelOptions[i].holdDown()), false
	case drain:
		w.over(i)
		n.stuck = true
		if w.owner == i {
			w.asked = 0
		}
	case release:
		n.stuck = true
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
	if w.asking != (note{}) && (w.key.state != ready || w.keyLeft < modelTTL+modelTTL/2-1) {
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
		if !n.up || n.frozen || !n.healthy {
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
		key = append(key, held, flags(n.hasRead, n.readDue, n.kept, p.taken, n.healthy, n.first != nil), byte(p.step), byte(p.rest), byte(p.holdOff), lasted,
			n.wait, n.sees, n.function, n.left, n.hold, n.age, n.ask, n.answer, n.delay, n.over, n.owes, n.inVain, n.waited, n.idle,
			byte(len(n.notes)))
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
