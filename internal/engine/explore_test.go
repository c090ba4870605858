package engine

// The exhaustive check of a store with a journal: every order of requests, commits, replies, notifications,
// expiries, lost connections and crashes, within budgets that the scopes name.
//
// What is real: Engine with its locks, commitOpen, expireSome, seal, Disconnect; statestore.Store; the encoding of
// requests and records. commitOpen runs as a coroutine that stops inside the journal's Commit, before and
// after the batch is durable, and at each reply it hands over. There are no other goroutines, and time moves only by the move "tick".
//
// A state is the moves since the process began, and the world before them (see world). The engine cannot be copied, so
// each move makes them all again in a new one. The key of a state is everything that the engine, the store and
// the world have in memory (see digest), so two states with one key have the same future.
//
// What is checked, by the numbers of docs/invariants.md: 30, 14, 15: each reply is the one of a register that takes the requests in
// their order (register_test.go), also after a crash, which takes the register back to what was durable. 33, 60: nothing leaves
// before all is durable that it shows. 23: a redelivery gets the first reply and changes nothing. 11, 36: a version is above all
// that have left. 31, 32, 62: by the deadlines of the register. 59: a renewal has no record, and waits for no commit;
// no two clients have a granted lease at once. 34: nothing leaves after a failure. 35: without standing no reply leaves but those that a
// commit proved. And: each reply and each notification
// leaves in the end, in the order of the store, and no watcher hears of a change from before its connection.
//
// What is left out: a request that changed nothing is not delivered again after a crash, since a store judges it anew then, whatever came
// after it (docs/operate.md says what that can do); the time between sending and arrival (a request that arrives later with an older timestamp differs
// by that only), the parts in which many replies leave (sendBatch), and the moment between the end of a commit and its first
// reply: a request then is held like one after that reply.
//
// A new request is a row of a scope's menu. A new event is a kind of move: in moves, step and describe. A new property
// is a line where the thing happens, which sets broken.

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/explore"
	"github.com/tenurelock/tenure/statestore"
)

// ticked is how much time a tick is: two are more than the RedeliveryWindow, and a TTL; three are the bound of the versions.
const ticked = 10 * time.Second

// The kinds of moves.
const (
	starts  = iota // a process loads the journal; A: 1: and crashes after its first commit
	sends          // a client sends a new request; A: of the menu
	again          // client A sends its first unanswered request again
	works          // commitOpen goes on to where it stops next
	fails          // the commit fails after A groups
	crashes        // the process ends, with A groups of the commit durable; B: 1: answered requests come again, too
	drops          // the connection of client A ends; B: as of crashes, 2: and its session
	expires        // what Run does when its timer fires or it is woken
	ticks
	stops // the process is told to stop
	ousts // another process may answer from now on
)

// wish is a request that a client may send.
type wish struct {
	client uint8  // 0: a, 1: b
	words  string // "ft": the client has its token with it
	ahead  bool   // its clock is ahead by 12 s
	try    bool   // the caller tries first whether the reply may leave at once
	willed bool
}

type scope struct {
	name                 string
	strict, idle, silent bool
	maxKeys              int
	tokens               [2]hlc.Token // of the clients, before they have a lease
	menu                 []wish
	budget, quick        budget
}

// budget is how often something may happen yet.
type budget struct{ sends, ticks, crashes, drops uint8 }

// world is what outlives a process.
type world struct {
	left              budget
	now, began, ended int               // in ticks: now, the start of the process, and when the one before could answer last
	disk              map[string][]byte // records; never modified
	requests          []request
	keys              [2]register // of l, the lease, and p, which it protects
	willed            bool        // l ends with the connection that set it
	until             [2]int      // until when each client believes to hold the lease, by the replies that left
	tokens            [2]hlc.Token
	watches           [2]bool // b watches the key
	connections       [2]uint8
	seen              hlc.Timestamp   // no version above it has left
	shown             []hlc.Timestamp // versions of values that have left
}

// request is one that was sent.
type request struct {
	wish, tick uint8
	token      hlc.Token
	connection uint8
	isWill     bool // of the store's own
	applied    bool // and remembered
	answered   bool
	again      bool // is to be sent again before the client sends others
	resent     bool // the latest delivery was not the first
	forgotten  bool // its session has ended
	reply      statestore.Reply
	group      int // which has its reply; 0: none; -1: of an earlier process
	need       int // how many groups must be durable before the reply leaves
}

// process is an engine and what the model knows of it.
type process struct {
	world
	scope         *scope
	engine        *Engine // nil: down
	opening       bool
	broken        error // the first property that was broken
	failed        bool  // nothing may leave any more
	killed        bool  // what happens from now on is of the model only
	sealed        bool  // it was told to stop
	ousted        bool  // it has no standing, and ends
	last          bool  // this commit is its last
	durable       int   // groups
	durableBefore int   // groups that were durable when the commit began
	need          [2]int
	history       []past
	heldBy        map[uint64]*waiting // by the order of what is held
	pending       []note
	known         map[*statestore.Change]bool
	fresh         []statestore.Notification // delivered during this move

	resume  func() (where, bool)
	kill    func()
	yield   func(where) bool
	at      where
	keep    int // the groups of a commit that fails
	verdict error
}

// waiting is a request that was delivered.
type waiting struct {
	request    int
	connection uint8
	need       int  // how many groups must be durable before the reply leaves
	proven     bool // by a commit that ended while the process had its standing
}

// where is where commitOpen has stopped.
type where uint8

const (
	idle     where = iota
	inCommit       // in Commit
	written        // in Commit, which has done its work
	leaving        // a part of the batch has left
)

// past is the register of a key after a group.
type past struct {
	group, key int
	register   register
	willed     bool
}

// note is a notification that has not left.
type note struct {
	client string
	change *statestore.Change
	need   int
}

var (
	errCrash = errors.New("the process has crashed")
	clients  = [2]string{"a", "b"}
	keyNames = [2]string{"l", "p"}
)

// breaks notes that a property is broken.
func (p *process) breaks(format string, args ...any) {
	if p.broken == nil {
		p.broken = fmt.Errorf(format, args...)
	}
}

func (p *process) instant() time.Duration { return time.Duration(p.now) * ticked }

// Load, Commit, Close and Standing make the process the journal of its engine.

func (p *process) Load(_ context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	for id, value := range p.disk {
		if err := each(statestore.Record{ID: []byte(id), Value: value}); err != nil {
			return former, err
		}
	}
	former.Silent = p.scope.silent
	if p.scope.idle {
		former.Idle = time.Duration(p.now-p.world.ended) * ticked
	}
	return former, nil
}

func (p *process) Commit(_ context.Context, groups []statestore.Group) error {
	if p.opening {
		p.write(groups)
		return nil
	}
	if !p.yield(inCommit) {
		return errCrash
	}
	if p.ousted {
		p.failed = true
		return errDisk
	}
	if p.verdict != nil {
		p.write(groups[:p.keep])
		return p.verdict
	}
	p.write(groups)
	if !p.yield(written) {
		return errCrash
	}
	return nil
}

func (p *process) Close() error { return nil }

// write makes groups durable.
func (p *process) write(groups []statestore.Group) {
	p.disk = maps.Clone(p.disk)
	if p.disk == nil {
		p.disk = make(map[string][]byte)
	}
	for _, group := range groups {
		for _, record := range group {
			if record.Value == nil {
				delete(p.disk, string(record.ID))
			} else {
				p.disk[string(record.ID)] = record.Value
			}
		}
	}
	p.durable += len(groups)
	p.history = slices.DeleteFunc(p.history, func(h past) bool { // only the latest that is durable counts
		return slices.ContainsFunc(p.history, func(later past) bool { return later.key == h.key && later.group > h.group && later.group <= p.durable })
	})
}

// start starts a process on what is durable.
func (p *process) start() {
	options := statestore.Options{Identity: "s", Strict: p.scope.strict, MaxKeys: p.scope.maxKeys}
	began := time.Now() // stands still in the bubble
	p.opening = true
	var err error
	p.engine, err = OpenWithClock(context.Background(), options, p, p.deliver, func() time.Time { return began.Add(p.instant()) })
	if err != nil {
		p.breaks("the store does not start again: %w", err)
		return
	}
	p.engine.BetweenDeliveries(func() {
		if !p.killed {
			p.yield(leaving)
		}
	})
	p.opening = false
	p.began, p.durable = p.now, 0
	p.engine.Begin()
	p.engine.wake <- struct{}{} // Run begins with a timer that is due
	p.heldBy, p.known = make(map[uint64]*waiting), make(map[*statestore.Change]bool)
	former := p.now
	if p.scope.idle {
		former = p.world.ended
	}
	for k := range p.keys {
		r := &p.keys[k]
		p.history = append(p.history, past{0, k, *r, p.willed})
		if !r.exists || r.lifetime == 0 {
			continue
		}
		life := r.lifetime
		switch {
		case k == 0 && p.willed && p.scope.silent:
			life /= 2
		case k == 0 && p.willed:
			former, life = p.now, 0
		}
		r.deadline, r.version = time.Duration(former)*ticked+life, hlc.Timestamp{}
		if r.deadline == 0 {
			r.deadline = -1 // zero would be none
		}
	}
}

// total returns how many groups there are, durable or not.
func (p *process) total() int {
	n := p.durable + len(p.engine.open.groups)
	if p.at == inCommit {
		n += len(p.engine.committing.groups)
	}
	return n
}

// work lets commitOpen begin or go on, until it stops again.
func (p *process) work() {
	if p.resume == nil {
		select {
		case <-p.engine.commit:
		default:
		}
		p.durableBefore, p.last = p.durable, p.sealed
		p.resume, p.kill = iter.Pull(func(yield func(where) bool) {
			p.yield = yield
			if err := p.engine.commitOpen(context.Background()); err != nil && !p.failed && !p.killed && !p.ousted {
				p.breaks("commitOpen: %w", err)
			}
		})
	}
	p.at, _ = p.resume()
	if p.at != idle || p.failed {
		return
	}
	p.resume, p.kill = nil, nil
	if p.last {
		p.engine.fail(ErrStopped)
		p.end(false)
	} else {
		p.checkAtRest()
	}
}

// checkAtRest checks that nothing is forgotten while no commit is under way.
func (p *process) checkAtRest() {
	if p.broken != nil || p.sealed || p.ousted {
		return
	}
	if len(p.engine.open.groups) > 0 {
		if len(p.engine.commit) == 0 {
			p.breaks("nothing commits the open batch")
		}
		return
	}
	for i, r := range p.requests {
		if r.applied && !r.answered && !r.again && !r.forgotten && !r.isWill && r.connection == p.connections[p.scope.menu[r.wish].client] {
			p.breaks("no reply to request %d leaves", i+1)
		}
	}
	if len(p.pending) > 0 {
		p.breaks("no notification of %s leaves", p.pending[0].change.Key)
	}
}

// end ends the process. resend says that the latest answered requests are sent again, too.
func (p *process) end(resend bool) {
	p.killed = true
	if p.kill != nil {
		p.kill()
	}
	p.engine, p.world.ended = nil, p.now
	for k := range p.keys {
		for _, h := range p.history {
			if h.key == k && h.group <= p.durable {
				p.keys[k] = h.register
				if k == 0 {
					p.willed = h.willed
				}
			}
		}
	}
	for i := range p.requests {
		r := &p.requests[i]
		if r.applied && r.group == 0 || p.hasWill() >= 0 {
			r.forgotten = true // it is acknowledged: see above; and the sessions of a store that applies Wills end with its process
		}
		if r.applied = r.applied && r.group != 0 && r.group <= p.durable; r.applied {
			r.group = -1
		} else {
			r.group = 0
		}
		r.need = 0
	}
	for client := range clients {
		p.lose(client, resend)
	}
}

// lose ends the connection of a client.
func (p *process) lose(client int, resend bool) {
	p.connections[client]++
	p.pending = slices.DeleteFunc(p.pending, func(n note) bool { return n.client == clients[client] })
	if client == 1 {
		p.watches = [2]bool{}
	}
	if p.hasWill() >= 0 {
		p.until[client] = 0
	}
	for i := len(p.requests) - 1; i >= 0; i-- {
		r := &p.requests[i]
		if int(p.scope.menu[r.wish].client) != client || r.forgotten || r.isWill {
			continue
		}
		r.again = r.again || !r.answered
		if r.answered && resend {
			r.again, resend = true, false
		}
	}
}

// hasWill returns which wish of the menu is the Will of client a; -1: it has none.
func (p *process) hasWill() int {
	if !p.scope.menu[0].willed {
		return -1
	}
	return slices.IndexFunc(p.scope.menu, func(w wish) bool { return w.words == "VDEL l a" })
}

func (p *process) drop(client, how int) {
	p.engine.Disconnect(clients[client])
	p.lose(client, how == 1)
	if how == 2 {
		p.engine.EndSession(clients[client])
		for i := range p.requests {
			if r := &p.requests[i]; int(p.scope.menu[r.wish].client) == client {
				r.again, r.forgotten = false, true
			}
		}
	}
	if will := p.hasWill(); client == 0 && will >= 0 {
		p.requests = append(p.requests, request{wish: uint8(will), tick: uint8(p.now), isWill: true})
		p.submit(len(p.requests) - 1)
	}
}

func (p *process) canExpire() bool {
	e := p.engine
	return !p.sealed && (len(e.wake) > 0 || e.armed && e.next <= e.Elapsed())
}

func (p *process) expire() {
	select {
	case <-p.engine.wake:
	default:
	}
	before := p.total()
	p.engine.expireSome()
	changes := [2]int{}
	groups := p.engine.open.groups
	for _, group := range groups[len(groups)-(p.total()-before):] {
		key := slices.Index(keyNames[:], string(group[0].ID[1:]))
		if key < 0 || !p.keys[key].exists || p.keys[key].at(p.instant()).exists {
			p.breaks("31: %q expires early", group[0].ID)
			return
		}
		p.keys[key] = p.keys[key].gone()
		if p.watches[key] {
			changes[key]++
		}
	}
	p.noteGroups(before, register{})
	p.noteChanges(0, changes[0]+changes[1])
}

// step makes a move.
func (p *process) step(m explore.Move) {
	switch m.Kind {
	case starts:
		p.start()
		if m.A == 1 && p.broken == nil {
			p.left.crashes--
			was := p.world.ended
			p.end(false)
			p.world.ended = was // it answered nothing
		}
	case sends:
		p.left.sends--
		w := p.scope.menu[m.A]
		p.requests = append(p.requests, request{wish: m.A, tick: uint8(p.now), token: p.tokens[w.client]})
		if strings.HasPrefix(w.words, "VDEL") {
			p.until[w.client] = 0
		}
		p.submit(len(p.requests) - 1)
	case again:
		p.submit(p.firstAgain(m.A))
	case works:
		p.work()
	case fails:
		p.left.crashes--
		p.keep, p.verdict, p.failed = int(m.A), errDisk, true
		p.work()
		for _, words := range []string{"GET l", "SET l a NEX PX 40000"} {
			if _, now := p.engine.Submit(parse("a", strings.Fields(words)), nil); now {
				p.breaks("34: a store whose journal has failed answers %s", words)
			}
		}
		p.end(false)
	case crashes:
		if !p.ousted {
			p.left.crashes--
		}
		if p.at == inCommit {
			p.write(p.engine.committing.groups[:m.A])
		}
		p.end(m.B == 1)
	case drops:
		p.left.drops--
		p.drop(int(m.A), int(m.B))
	case expires:
		p.expire()
	case ticks:
		p.left.ticks--
		p.now++
		if p.engine != nil {
			p.engine.started = p.engine.started.Add(-ticked)
		}
	case stops:
		p.left.crashes--
		p.sealed = true
		p.engine.seal()
	case ousts:
		p.left.crashes--
		p.oust()
	}
	if p.engine == nil || p.broken != nil || p.sealed || p.ousted {
		return
	}
	if p.at == idle {
		p.checkAtRest()
	}
	for k, r := range p.keys {
		if r.exists && !r.at(p.instant()).exists && !p.canExpire() {
			p.breaks("25: nothing removes the expired key %s", keyNames[k])
		}
	}
}

// firstAgain returns the first request that a client must send again; -1: none.
func (p *process) firstAgain(client uint8) int {
	return slices.IndexFunc(p.requests, func(r request) bool { return r.again && p.scope.menu[r.wish].client == client })
}

// any reports whether a client has such a request in its session.
func (p *process) any(client uint8, such func(*request) bool) bool {
	return slices.ContainsFunc(p.requests, func(r request) bool {
		return p.scope.menu[r.wish].client == client && !r.forgotten && !r.isWill && such(&r)
	})
}

// moves returns what can happen next.
func (p *process) moves() (moves []explore.Move) {
	add := func(can bool, m explore.Move) {
		if can {
			moves = append(moves, m)
		}
	}
	add(p.left.ticks > 0, explore.Move{Kind: ticks})
	if p.engine == nil {
		add(true, explore.Move{Kind: starts})
		add(p.left.crashes > 0, explore.Move{Kind: starts, A: 1})
		return moves
	}
	for i, w := range p.scope.menu {
		hasToken := !strings.HasSuffix(w.words, "ft") || !p.tokens[w.client].IsZero()
		add(p.left.sends > 0 && hasToken && p.firstAgain(w.client) < 0, explore.Move{Kind: sends, A: uint8(i)})
	}
	for client := range uint8(2) {
		add(p.firstAgain(client) >= 0, explore.Move{Kind: again, A: client})
		for how := range uint8(3) {
			comes := p.any(client, func(r *request) bool { return how != 1 || r.answered })
			add(p.left.drops > 0 && comes, explore.Move{Kind: drops, A: client, B: how})
		}
	}
	add(p.resume != nil || len(p.engine.commit) > 0 || p.sealed, explore.Move{Kind: works})
	add(p.canExpire(), explore.Move{Kind: expires})
	if p.ousted {
		add(true, explore.Move{Kind: crashes})
		return moves
	}
	if p.left.crashes == 0 {
		return moves
	}
	add(!p.sealed, explore.Move{Kind: stops})
	add(!p.sealed, explore.Move{Kind: ousts})
	groups := 0
	if p.at == inCommit {
		groups = len(p.engine.committing.groups)
	}
	for n := range uint8(groups + 1) {
		add(true, explore.Move{Kind: crashes, A: n})
		comes := func(r *request) bool { return r.answered && !r.again && r.group != 0 }
		add(p.any(0, comes) || p.any(1, comes), explore.Move{Kind: crashes, A: n, B: 1})
		add(p.at == inCommit, explore.Move{Kind: fails, A: n})
	}
	return moves
}
