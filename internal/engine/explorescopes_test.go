package engine

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tenurelock/tenure/hlc"

	"github.com/tenurelock/tenure/internal/explore"
)

// A lifetime of two ticks.
const (
	setA, setB   = "SET l a NEX PX 20000", "SET l b NEX PX 20000"
	freeA, freeB = "VDEL l a", "VDEL l b"
)

var scopes = []*scope{
	{
		name: "a lease of two clients", idle: true,
		menu:  []wish{{words: setA}, {words: freeA}, {client: 1, words: setB, try: true}, {client: 1, words: "GET l", try: true}},
		quick: budget{sends: 2, crashes: 1}, budget: budget{sends: 2, ticks: 3, crashes: 1},
	},
	{
		name: "a protected key", strict: true, tokens: [2]hlc.Token{{Wall: 1, Node: "n"}, {Wall: 2, Node: "n"}},
		menu:  []wish{{words: "SET p 1 ft"}, {client: 1, words: "SET p 2 ft"}, {words: "SET p 1"}, {client: 1, words: "DEL p ft"}},
		quick: budget{sends: 3}, budget: budget{sends: 3, crashes: 1},
	},
	{
		name: "a protected key that is not kept", tokens: [2]hlc.Token{{Wall: 1, Node: "n"}, {Wall: 2, Node: "n"}},
		menu:  []wish{{words: "SET p 1 PX 20000 ft"}, {client: 1, words: "SET p 1 PX 20000 ft"}, {client: 1, words: "DEL p ft"}},
		quick: budget{sends: 2, crashes: 1}, budget: budget{sends: 3, crashes: 1},
	},
	{
		name: "fences of a key that is gone", strict: true, tokens: [2]hlc.Token{{Wall: 1, Node: "n"}, {Wall: 2, Node: "n"}},
		menu:  []wish{{words: "SET p 1 ft"}, {words: "DEL p ft"}, {client: 1, words: "DEL p ft"}, {client: 1, words: "SET l x"}},
		quick: budget{sends: 3}, budget: budget{sends: 3, crashes: 1},
	},
	{
		name: "a lease and the key that it protects", strict: true,
		menu:  []wish{{words: "SET l a NX PX 10000"}, {client: 1, words: "SET l b NX PX 10000"}, {words: "SET p 1 ft"}, {client: 1, words: "SET p 2 ft"}},
		quick: budget{sends: 2, crashes: 1}, budget: budget{sends: 3, crashes: 1},
	},
	{
		name:  "a watcher",
		menu:  []wish{{client: 1, words: "KEYNOTIFY l"}, {words: "SET l a PX 10000", try: true}, {words: "SET l c PX 10000"}, {words: freeA}},
		quick: budget{sends: 2, ticks: 1}, budget: budget{sends: 3, ticks: 1},
	},
	{
		name:  "a watcher that connects again",
		menu:  []wish{{client: 1, words: "KEYNOTIFY l"}, {words: "SET l a PX 10000", try: true}, {words: "SET l c PX 10000"}, {words: freeA}},
		quick: budget{sends: 2, drops: 1}, budget: budget{sends: 2, ticks: 1, drops: 1},
	},
	{
		name: "a Will", idle: true,
		menu:  []wish{{words: setA, willed: true}, {client: 1, words: setB}, {words: freeA}},
		quick: budget{sends: 2, drops: 1}, budget: budget{sends: 2, ticks: 1, crashes: 1, drops: 1},
	},
	{
		name: "a Will of a store that fell silent", idle: true, silent: true,
		menu:  []wish{{words: setA, willed: true}, {client: 1, words: setB}, {words: freeA}},
		quick: budget{sends: 1, ticks: 2, crashes: 1}, budget: budget{sends: 2, ticks: 3, crashes: 1},
	},
	{
		name:  "a clock ahead",
		menu:  []wish{{words: "SET l a NEX PX 10000", try: true}, {words: "SET l a NEX PX 10000", ahead: true}, {words: "SET l a NEX PX 20000"}},
		quick: budget{sends: 2, ticks: 2}, budget: budget{sends: 2, ticks: 3, crashes: 1},
	},
	{
		name: "a quota", maxKeys: 1,
		menu:  []wish{{words: "SET l a PX 10000"}, {client: 1, words: "SET p 1"}, {words: "DEL l"}, {client: 1, words: "DEL p"}},
		quick: budget{sends: 2, crashes: 1}, budget: budget{sends: 3, crashes: 1},
	},
}

// Invariants 11, 14, 15, 23, 30 to 36, 59, 60 and 62: see explore_test.go.
func TestExploreJournal(t *testing.T) {
	for _, sc := range scopes {
		t.Run(sc.name, func(t *testing.T) {
			left := sc.quick
			if explore.Whole() {
				left = sc.budget
			}
			synctest.Test(t, func(t *testing.T) { explore.Check(t, sc.model(left), explore.Limits{}) })
		})
	}
}

// state is what the walk knows of a process and its world.
type state struct {
	scope *scope
	world world          // before the moves
	moves []explore.Move // since
	next  []explore.Move
	key   [sha256.Size]byte
}

func (s *state) do(m explore.Move) error {
	s.moves = append(slices.Clip(s.moves), m)
	p := s.process()
	for _, m := range s.moves {
		p.step(m)
	}
	s.note(p)
	return p.broken
}

func (s *state) process() *process {
	p := &process{world: s.world, scope: s.scope}
	p.requests, p.shown = slices.Clone(p.requests), slices.Clone(p.shown)
	return p
}

// note keeps what the walk needs of a process, and ends it.
func (s *state) note(p *process) {
	s.next, s.key = p.moves(), sha256.Sum256(p.digest(nil))
	if p.engine == nil {
		s.world, s.moves = p.world, nil
	} else if p.kill != nil {
		p.killed = true
		p.kill()
	}
}

func describe(s *state, m explore.Move) string {
	switch m.Kind {
	case starts:
		return [...]string{"a process starts", "a process starts, and crashes after its first commit"}[m.A]
	case sends:
		w := s.scope.menu[m.A]
		if w.ahead {
			return fmt.Sprintf("%s, with a clock ahead by 12 s, sends %s", clients[w.client], w.words)
		}
		return fmt.Sprintf("%s sends %s", clients[w.client], w.words)
	case again:
		return clients[m.A] + " sends its first unanswered request again"
	case works:
		return "the commit goes on"
	case fails:
		return fmt.Sprintf("the commit fails after %d groups", m.A)
	case crashes:
		return fmt.Sprintf("the process crashes with %d groups of the commit durable%s", m.A, [...]string{"", "; the latest answered request of each client comes again"}[m.B])
	case drops:
		return fmt.Sprintf("the connection of %s ends%s", clients[m.A], [...]string{"", ", and its latest answered request comes again", " with its session"}[m.B])
	case expires:
		return "Run removes expired keys"
	case ticks:
		return "10 s pass"
	}
	return [...]string{"the process is told to stop", "the process loses its standing"}[m.Kind-stops]
}

func (sc *scope) model(left budget) explore.Model[*state] {
	return explore.Model[*state]{
		Start: func() *state {
			s := &state{scope: sc, world: world{left: left, tokens: sc.tokens}}
			for k := range s.world.keys {
				s.world.keys[k].strict = sc.strict
			}
			s.note(s.process())
			return s
		},
		Copy:     func(s *state) *state { c := *s; return &c },
		Moves:    func(s *state, to []explore.Move) []explore.Move { return append(to, s.next...) },
		Do:       (*state).do,
		Describe: describe,
		Key:      func(s *state, to []byte) []byte { return append(to, s.key[:]...) },
		End:      func(s *state) bool { return true }, // checkAtRest checks that it is not stuck
	}
}
