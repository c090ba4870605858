package lease

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/explore"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// The walks of this file go through every order of events of a few holders and one store, with a few faults.
//
// The code that decides is the real one: the values acquisition, waiting, schedule and freeing of this package,
// protocol.TokenRefused, and the whole of statestore.Store. A state of the model is what they hold (holder, store), the
// requests and replies under way, and how many faults may still come. Time goes in ticks: it passes when nothing
// that is in order is under way and nothing is due. A fault takes a message out of its order, so that it comes at
// any later time or never; repeats one; stops, crashes or cuts off a holder; restarts the store; or
// steps its clock; makes a holder miss a notification, or makes its clock lag by the margin. In a scope that is
// deaf no notification ever comes.
//
// What is left out: the transport (a connection is an order of messages), several stores (package
// cluster has a walk of its own), what a store commits (package engine), and numbers that are random: they are 0.
//
// To add an event, give it a name below, append it in moves, and carry it out in do. To add a
// property, check it in check, or where it can break, and return an error with the number of the invariant.

// A kind of move. A is the index of a holder, a request or a reply.
const (
	deliver  uint8 = iota // a request arrives, and is applied
	answers               // a reply arrives
	notifies              // the hint arrives
	due                   // a holder does what is due
	protects              // a holder writes to the protected key
	passes                // a tick passes; B is 1 if the clock of A does not show it, which is a lag by the margin
	forgets               // a late request never comes
	thaws
	lags // no move: lets one clock lag, once
	// From here on each is a fault.
	strays   // a request leaves its order
	loses    // a reply is lost
	repeats  // a request will come twice
	crashes  // a holder ends, and another process of its name begins
	freezes  // a holder stands still
	cuts     // a holder's connection ends
	restarts // the store is started again; B is 1 if it has lost its data
	steps    // the store's wall clock steps; B is 1 if back
	misses   // a notification is lost
	forges   // a client forges the notification that the lease was deleted
	quits    // the caller of an acquisition gives it up, or with Wills releases the lease, and another begins
	removes  // an operator deletes the lease
)

var moveNames = [...]string{"arrives at the store:", "hears:", "is notified", "does what is due", "writes under its token", "a tick passes", "never comes:",
	"runs again", "", "is late:", "its answer is lost:", "will come twice:", "crashes and starts again", "stands still", "loses its connection",
	"the store restarts", "the store's wall clock steps",
	"misses a notification", "hears a forged deletion", "gives its acquisition up, or releases the lease", "an operator deletes the lease"}

// world is a state.
type world struct {
	now      int
	holders  []holder
	store    store
	requests []request // under way, in the order in which they were sent
	replies  []reply   // for holder A: replies of B
	faults   uint8     // that may still come
	deaf     bool      // no notification comes
	willed   bool      // holders use InstantFailover
	slow     bool      // only the TTL may free the lease, in spite of that
	prompt   bool      // see scope
	single   bool      // there is one fault at most
	lagged   bool      // a clock has: in one TTL, none may lag more
	allowed  uint32    // kinds of faults

	latest   hlc.Token // of the tenures that have begun
	written  hlc.Token // of the protected writes that were accepted
	lostData bool
	forced   bool // an operator has deleted the lease: two may believe, until the first one hears of it
	idle     int  // ticks without a holder, and without a fault
}

// scope is a model with its bounds.
type scope struct {
	name    string
	quick   bool
	holders int
	deaf    bool // no notification comes
	willed  bool // holders use InstantFailover
	prompt  bool // an answer arrives with the application of its request, unless a fault comes between
	faults  uint8
	kinds   []uint8
}

func (s scope) start() *world {
	w := &world{faults: s.faults, single: s.faults == 1, deaf: s.deaf, prompt: s.prompt, willed: s.willed, store: store{identity: 1, willed: s.willed}}
	for _, kind := range s.kinds {
		w.allowed |= 1 << kind
	}
	w.store.made = w.store.make()
	for i := range s.holders {
		w.holders = append(w.holders, holder{id: uint8(i)})
	}
	for i := range w.holders {
		w.acquire(&w.holders[i])
	}
	return w
}

func (w *world) copy() *world {
	c := *w
	c.holders, c.requests, c.replies = slices.Clone(w.holders), slices.Clone(w.requests), slices.Clone(w.replies)
	return &c
}

func (s scope) model() explore.Model[*world] {
	return explore.Model[*world]{Start: s.start, Copy: (*world).copy, Moves: (*world).moves, Do: (*world).do, Describe: (*world).describe, Key: (*world).key}
}

// moves appends what can happen.
func (w *world) moves(to []explore.Move) []explore.Move {
	add := func(kind uint8, a, b int) { to = append(to, explore.Move{Kind: kind, A: uint8(a), B: uint8(b)}) }
	fault := func(kind uint8, a, b int) {
		if w.faults > 0 && w.allowed>>kind&1 == 1 {
			add(kind, a, b)
		}
	}
	quiet := true
	var first [4]bool // of a holder: a request that is in order was seen
	for i, r := range w.requests {
		if r.late {
			add(deliver, i, 0)
			add(forgets, i, 0)
			continue
		}
		quiet = false
		if first[r.value.holder] {
			continue
		}
		first[r.value.holder] = true
		add(deliver, i, 0)
		fault(strays, i, 0)
		if w.prompt {
			fault(loses, i, 1)
		}
		if !r.again && r.same == 0 {
			fault(repeats, i, 0)
		}
	}
	for i, r := range w.replies {
		h := &w.holders[r.holder]
		if h.frozen || slices.ContainsFunc(w.replies[:i], func(o reply) bool { return o.holder == r.holder }) {
			continue
		}
		quiet = false
		add(answers, i, 0)
		fault(loses, i, 0)
	}
	for i := range w.holders {
		h := &w.holders[i]
		if h.frozen {
			add(thaws, i, 0)
			continue
		}
		if h.listens() {
			quiet = false
			add(notifies, i, 0)
			fault(misses, i, 0)
		}
		if h.due() {
			quiet = false
			add(due, i, 0)
		}
		if h.believes() && !h.writing && w.written.Compare(h.token) != 0 {
			add(protects, i, 0)
		}
		w.ends(i, fault)
		fault(freezes, i, 0)
		if h.watching {
			fault(forges, i, 0)
		}
		if h.phase == asking || h.phase == pausing || h.phase == waits || w.willed && h.believes() {
			fault(quits, i, 0)
		}
	}
	if quiet {
		add(passes, 0, 0)
		for i := range w.holders {
			if !w.lagged && w.allowed>>lags&1 == 1 {
				add(passes, i, 1)
			}
		}
	}
	if !w.willed || !slices.ContainsFunc(w.holders, func(h holder) bool { return h.frozen }) { // see ends
		fault(restarts, 0, 0)
		fault(restarts, 0, 1)
	}
	fault(steps, 0, 0)
	fault(steps, 0, 1)
	if held := w.store.holder(); held != (value{}) {
		fault(removes, 0, 0)
	}
	return to
}

// do carries out a move, and checks the state after it.
func (w *world) do(m explore.Move) error {
	if m.Kind >= strays {
		w.faults--
		w.idle = 0
	}
	if err := w.carryOut(m); err != nil {
		return err
	}
	return w.check()
}

func (w *world) carryOut(m explore.Move) error {
	i := int(m.A)
	switch m.Kind {
	case deliver:
		h := &w.holders[w.requests[i].value.holder]
		if err := w.deliver(i); err != nil || !w.prompt || h.frozen {
			return err
		}
		return w.listen(h)
	case answers:
		r := w.replies[i]
		w.replies = slices.Delete(w.replies, i, i+1)
		return w.hear(&w.holders[r.holder], r)
	case notifies:
		return w.heard(&w.holders[i])
	case due:
		h := &w.holders[i]
		before := h.phase
		if err := w.act(h); err != nil {
			return err
		}
		if h.ends() {
			return fmt.Errorf("invariant 25: h%d goes on as if its connection had not ended", i)
		}
		if h.phase == before && h.due() {
			return fmt.Errorf("invariant 25: h%d does what is due, and it stays due", i)
		}
	case protects:
		h := &w.holders[i]
		h.writing = true
		h.write++
		w.requests = append(w.requests, request{kind: writes, value: h.value(), token: h.token, store: h.bound, call: h.write})
	case passes:
		if m.B == 1 {
			w.holders[i].clock--
			w.lagged = true
		}
		return w.pass()
	case forgets:
		w.requests = slices.Delete(w.requests, i, i+1)
		w.idle, w.slow = 0, true
	case strays:
		w.stray(i)
	case loses:
		if m.B == 1 {
			if err := w.deliver(i); err != nil {
				return err
			}
			i = len(w.replies) - 1
		}
		w.replies = slices.Delete(w.replies, i, i+1)
	case repeats:
		w.requests[i].again, w.requests[i].same = true, w.faults+1
	case crashes:
		h := &w.holders[i]
		w.disconnect(h, m.B)
		*h = holder{id: h.id, clock: h.clock, attempt: h.attempt, call: h.call, write: h.write}
		w.acquire(h)
	case freezes:
		w.holders[i].frozen = true
	case thaws:
		w.holders[i].frozen = false
		w.idle = 0
		if w.prompt {
			return w.listen(&w.holders[i])
		}
	case cuts:
		h := &w.holders[i]
		w.disconnect(h, m.B)
		if w.willed {
			break
		}
		h.writing = false
		if h.watching {
			w.watch(h)
		}
		if h.underWay && !h.frozen {
			return w.answered(h, transport.ErrOutcomeUnknown, hlc.Timestamp{}, value{})
		}
	case restarts:
		w.lostData, w.slow = w.lostData || m.B == 1, w.slow || m.B == 1
		if w.willed { // connections end with the process of the server, and Wills
			for i := range w.holders {
				w.disconnect(&w.holders[i], 0)
			}
			w.requests = slices.DeleteFunc(w.requests, func(r request) bool { return r.ended && !r.late || r.kind == wills })
		}
		w.store.restart(w.now, m.B == 0)
		for i := range w.requests {
			w.requests[i].first = reply{}
		}
		w.changed()
	case steps:
		w.store.wall += 3
		if m.B == 1 {
			w.store.wall -= 6
		}
	case misses:
		w.holders[i].hint = hint{}
	case forges:
		w.holders[i].hint = hint{pending: true}
	case quits:
		return w.quit(&w.holders[i])
	case removes:
		held := w.store.holder()
		w.forced = true
		w.store.apply(w.now, request{kind: frees, value: held})
		w.changed()
	}
	return nil
}

// stray takes a request out of its order.
func (w *world) stray(i int) {
	r := &w.requests[i]
	r.late = true
	if h := &w.holders[r.value.holder]; r.value == h.value() {
		h.strayed = true
	}
}

// disconnect ends the connection of a holder: its requests come at any time or never, and the replies never.
// With a Will they come in their order or never, and then the Will, before anything of the next connection.
func (w *world) disconnect(h *holder, b uint8) {
	if w.willed {
		w.sever(h, int(b&7), b >= 8)
		return
	}
	for i := range w.requests {
		if w.requests[i].value.holder == h.id {
			w.stray(i)
		}
	}
	w.replies = slices.DeleteFunc(w.replies, func(r reply) bool { return r.holder == h.id })
}

// deliver applies a request.
func (w *world) deliver(i int) error {
	r := w.requests[i]
	result, set := w.store.apply(w.now, r)
	if r.late {
		w.idle, w.slow = 0, w.slow || r.kind != wills
	}
	back := reply{holder: r.value.holder, kind: r.kind, call: r.call, store: w.store.identity, err: errorOf(result), version: result.Version, value: valueOf(result.Value)}
	if r.again { // and once more, at any time
		w.requests[i].again, w.requests[i].stamp, w.requests[i].first = false, w.now, back
		w.stray(i)
	} else {
		w.requests = slices.Delete(w.requests, i, i+1)
	}
	if !r.ended {
		w.replies = append(w.replies, back)
	}
	if changes := set || result.Outcome == statestore.Deleted; changes && r.store != 0 && r.store != w.store.identity {
		return fmt.Errorf("invariant 47: the store applied a request of %v that names another", r.value)
	}
	if stamp := (hlc.Timestamp{Wall: started + int64(w.now)*1000}); set && r.same == 0 && result.Version.Compare(stamp) <= 0 {
		return fmt.Errorf("invariant 36: the version %v is not above the request's %v", result.Version, stamp)
	}
	if r.kind == writes && set {
		if r.token.Compare(w.written) < 0 {
			return fmt.Errorf("invariant 13: a write with token %v was accepted after one with %v", r.token, w.written)
		}
		w.written = r.token
	}
	if set || result.Outcome == statestore.Deleted {
		w.changed()
	}
	return nil
}

// listen lets a holder hear all that has arrived.
func (w *world) listen(h *holder) error {
	for {
		i := slices.IndexFunc(w.replies, func(r reply) bool { return r.holder == h.id })
		if i < 0 {
			return nil
		}
		r := w.replies[i]
		w.replies = slices.Delete(w.replies, i, i+1)
		if err := w.hear(h, r); err != nil {
			return err
		}
	}
}

// changed notifies those that watch the lease.
func (w *world) changed() {
	held, version := w.store.holder(), w.store.lease.Version
	for i := range w.holders {
		if h := &w.holders[i]; h.watching && !w.deaf && !h.lost {
			h.hint = hint{pending: true, value: held, version: version}
		}
	}
}

// hear is the arrival of a reply.
func (w *world) hear(h *holder, r reply) error {
	if r.store != h.knows {
		h.replaced = h.replaced || h.bound != r.store && h.bound != 0
		h.knows = r.store
	}
	switch {
	case r.kind == writes && h.writing && r.call == h.write:
		h.writing = false
		if protocol.TokenRefused(r.err) && h.phase == holds {
			return w.drive(h, event{kind: ended, err: refusedBy(r.err)})
		}
	case r.kind != writes && h.underWay && r.call == h.call:
		if err := w.answered(h, r.err, r.version, r.value); err != nil {
			return err
		}
		if r.kind == claims && errors.Is(r.err, transport.ErrConditionFailed) && h.believes() {
			return fmt.Errorf("invariant 6: h%d was refused, and believes that it has the lease", h.id)
		}
	}
	if h.phase == holds && h.replaced {
		return w.drive(h, event{})
	}
	return nil
}

func (w *world) pass() error {
	w.now++
	w.idle++
	for i := range w.holders {
		h := &w.holders[i]
		h.clock++
		if h.believes() || h.frozen {
			w.idle = 0
		}
	}
	if slices.ContainsFunc(w.requests, func(r request) bool { return r.late }) {
		w.idle = 0 // the fault is not over
	}
	if w.store.expire(w.now) {
		w.changed()
	}
	return nil
}

// tenureBegins is called before a tenure begins.
func (w *world) tenureBegins(h *holder) error {
	if h.token.Compare(w.latest) <= 0 && !w.forced {
		return fmt.Errorf("invariant 11: a tenure has token %v, and one before it %v", h.token, w.latest)
	}
	if left := h.schedule.deadline - h.now(); left < explored.GracePeriod+explored.RequestTimeout {
		return fmt.Errorf("invariant 10: a tenure begins %v before its deadline", left)
	}
	w.latest = h.token
	return nil
}

// patience returns within how many ticks without a fault some holder has the lease: the TTL of one that is gone, or the hold-off of a
// store without data, Jitter and a pause; after several faults a timeout, and what was left of a TTL when a store restarted.
func (w *world) patience() int {
	switch {
	case w.willed && !w.slow:
		return promptly
	case w.single:
		return 8
	}
	return 11
}

// check returns the property that the state breaks.
func (w *world) check() error {
	held := w.store.holder()
	believers := 0
	for i := range w.holders {
		h := &w.holders[i]
		if !h.believes() {
			h.silenced = h.phase == holds
			if h.phase == waits && h.waiting.dueAt > h.now()+explored.TTL+explored.Jitter {
				return fmt.Errorf("invariant 25: h%d waits for longer than a lease can last", i)
			}
			continue
		}
		believers++
		if !h.frozen && !h.due() {
			if err := h.checkTenure(); err != nil {
				return err
			}
		}
		if h.silenced {
			return fmt.Errorf("invariant 5: the tenure of h%d was over, and holds again", i)
		}
		if h.bound == w.store.identity && held != h.value() && !w.forced {
			return fmt.Errorf("invariant 1: h%d believes that it has the lease, and the store has %v", i, held)
		}
	}
	if believers > 1 && !w.forced {
		return errors.New("invariant 1: two holders believe that they have the lease")
	}
	if w.idle > w.patience() {
		return fmt.Errorf("invariant 25: for %d ticks without a fault no holder has the lease", w.idle)
	}
	return nil
}

func (w *world) describe(m explore.Move) string {
	text := moveNames[m.Kind]
	switch m.Kind {
	case deliver, forgets, strays, repeats:
		r := w.requests[m.A]
		text = fmt.Sprintf("%s %s of %v", text, kindNames[r.kind], r.value)
		if r.kind == writes {
			text += fmt.Sprintf(" %v", r.token)
		}
	case loses:
		if m.B == 1 {
			r := w.requests[m.A]
			return fmt.Sprintf("arrives at the store, and %s %s of %v", text, kindNames[r.kind], r.value)
		}
		return w.describe(explore.Move{Kind: answers, A: m.A}) + ": " + text
	case answers:
		r := w.replies[m.A]
		text = fmt.Sprintf("h%d %s %s: version %v, %v", r.holder, text, kindNames[r.kind], r.version, r.err)
	case passes:
		text = fmt.Sprintf("%s: %d", text, w.now+1)
		if m.B == 1 {
			text += fmt.Sprintf("; the clock of h%d lags by the margin", m.A)
		}
	case restarts, steps:
		text += map[uint8]string{restarts: " with", steps: " forward"}[m.Kind]
		if m.B == 1 {
			text = moveNames[m.Kind] + map[uint8]string{restarts: " without", steps: " back"}[m.Kind]
		}
	case removes:
	default:
		h := &w.holders[m.A]
		text = fmt.Sprintf("h%d %s (%s, clock %d)", m.A, text, phaseNames[h.phase], h.clock)
	}
	return text
}

// anything are all faults but that an operator deletes the lease. A lag is none: it is in the margin.
var anything = []uint8{strays, loses, repeats, crashes, freezes, cuts, restarts, steps, misses, forges, quits}

// scopes are the models. Each run of the tests walks through the quick ones.
var scopes = []scope{
	{name: "two holders, any fault", quick: true, holders: 2, faults: 1, kinds: anything},
	{prompt: true, name: "two holders, an operator, a late message or a freeze, and a lag", quick: true, holders: 2, faults: 1, kinds: []uint8{removes, strays, freezes, lags}},
	{prompt: true, name: "two holders, a crash or a restart of the store, without notifications", quick: true, holders: 2, faults: 1, kinds: []uint8{crashes, restarts}, deaf: true},
	{willed: true, name: "two holders with Wills, lost connections, crashes and restarts of the store", quick: true, holders: 2, faults: 1, kinds: []uint8{cuts, crashes, restarts, loses, quits}},
	{name: "two holders, any fault, and a clock that lags", holders: 2, faults: 1, kinds: append(anything, lags)},
	{name: "two holders, any fault, without notifications", holders: 2, faults: 1, kinds: append(anything, lags), deaf: true},
	{prompt: true, name: "two holders, faults of messages and lost connections", holders: 2, faults: 2, kinds: []uint8{strays, loses, repeats, cuts}},
	{prompt: true, name: "two holders, late messages, freezes and a lag", holders: 2, faults: 2, kinds: []uint8{strays, freezes, lags}},
	{prompt: true, name: "two holders, crashes, lost answers and acquisitions that are given up", holders: 2, faults: 2, kinds: []uint8{crashes, quits, loses}},
	{prompt: true, name: "two holders, restarts of the store, steps of its clock and freezes", holders: 2, faults: 2, kinds: []uint8{restarts, steps, freezes}},
	{prompt: true, name: "two holders, an operator, forged and lost notifications", holders: 2, faults: 2, kinds: []uint8{removes, forges, misses}},
	{prompt: true, name: "two holders, late messages and freezes", holders: 2, faults: 3, kinds: []uint8{strays, freezes}},
	{prompt: true, name: "three holders, late messages and freezes", holders: 3, faults: 2, kinds: []uint8{strays, freezes}},
	{willed: true, name: "two holders with Wills, any fault of those that a Will could change", holders: 2, faults: 1, kinds: []uint8{cuts, crashes, restarts, strays, loses, freezes, misses, quits}},
	{prompt: true, willed: true, name: "two holders with Wills, lost connections, crashes, releases, restarts of the store and late Wills", holders: 2, faults: 2, kinds: []uint8{cuts, crashes, restarts, strays, quits}},
	{name: "three holders, any fault", holders: 3, faults: 1, kinds: anything},
}

func TestExplore(t *testing.T) {
	for _, s := range scopes {
		if !s.quick && !explore.Whole() {
			continue // it takes minutes: make explore walks through it
		}
		t.Run(s.name, func(t *testing.T) {
			explore.Check(t, s.model(), explore.Limits{})
		})
	}
}
