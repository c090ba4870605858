// Package explore walks through every state that a model can reach, and checks each. A model is made
// of real code: of decisions that are pure functions, of a store that does no I/O, and of a list of
// what can happen around them. Tests use it; no program does.
//
// A walk goes breadth first, so the story of a violation is the shortest there is. Two states with the same
// key have the same future, by the word of the model, and the walk goes on from one of them. It remembers 128 bits of a
// SHA-256 sum for each key: among a hundred million states the chance that any two share them is below
// one in 10^22.
package explore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Model is what a walk goes through. S is a state. Its functions are called by several goroutines at
// once, each with a state of its own.
type Model[S any] struct {
	// Start returns the first state.
	Start func() S
	// Copy returns a state that shares nothing with s that Do changes.
	Copy func(s S) S
	// Moves appends what can happen next. It does not change s, and what it appends depends on the key of s
	// alone. A state without moves is an error, unless End allows it.
	Moves func(s S, moves []Move) []Move
	// Do carries a move out on s. The error says which property of the model it breaks.
	Do func(s S, move Move) error
	// Describe says in one line what a move of s does, before it is carried out.
	Describe func(s S, move Move) string
	// Key appends what decides the future of s. States that differ in names or in times that are the same
	// distance apart should have the same key.
	Key func(s S, key []byte) []byte
	// End reports whether s may be without moves; nil: no state may.
	End func(s S) bool
}

// Move is one thing that can happen in a state. The model gives the numbers their meaning.
type Move struct {
	Kind    uint8
	A, B, C uint8
}

// Limits bound a walk. Zero is no limit.
type Limits struct {
	States int // how many states to visit, about
	Depth  int // how many moves to make in a row
}

// Result is what a walk found.
type Result struct {
	States    int    // visited, all different
	Moves     int    // carried out
	Depth     int    // of the state that is farthest from the first
	Fixpoint  bool   // every state that can be reached was visited
	Violation *Story // the shortest; nil: no property was broken
}

// String returns the numbers of the walk in one line.
func (r Result) String() string {
	covers := "to a fixpoint"
	if !r.Fixpoint {
		covers = "cut off"
	}
	return fmt.Sprintf("%d states, %d moves, depth %d, %s", r.States, r.Moves, r.Depth, covers)
}

// Story is a way from the first state to a broken property.
type Story struct {
	Moves []Move
	Steps []string // what each move does
	Err   error    // the property that the last move broke
}

// String returns the story as numbered steps, and then as a row of a table that Replay takes.
func (s *Story) String() string {
	var text strings.Builder
	for i, step := range s.Steps {
		fmt.Fprintf(&text, "%3d. %s\n", i+1, step)
	}
	fmt.Fprintf(&text, "     %v\n     as a row: []explore.Move{", s.Err)
	for i, m := range s.Moves {
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprintf(&text, "{%d, %d, %d, %d}", m.Kind, m.A, m.B, m.C)
	}
	text.WriteString("}\n")
	return text.String()
}

// errStuck is the error of a state in which nothing can happen any more.
var errStuck = errors.New("nothing can happen any more")

// sum identifies a key.
type sum [16]byte

// node is a state that was visited: how the walk came to it.
type node struct {
	parent int32 // its index; -1 of the first
	move   Move
}

// live is a state whose moves were not carried out yet.
type live[S any] struct {
	index int32
	state S
}

// found is a state that a worker came to first.
type found[S any] struct {
	node  node
	state S
	err   error
}

// seen is the set of sums, in parts so that workers seldom wait for each other.
type seen [256]struct {
	mu   sync.Mutex
	sums map[sum]struct{}
}

// add reports whether a key is new.
func (s *seen) add(key []byte) bool {
	full := sha256.Sum256(key)
	part := &s[full[31]]
	part.mu.Lock()
	defer part.mu.Unlock()
	before := len(part.sums)
	if part.sums == nil {
		part.sums = make(map[sum]struct{})
	}
	part.sums[sum(full[:16])] = struct{}{}
	return len(part.sums) > before
}

// Walk visits the states of a model until it has visited all, or reaches a limit, or a property is broken. The error
// is the end of ctx.
func (m Model[S]) Walk(ctx context.Context, limits Limits) (Result, error) {
	if most := 500; UnderRace && (limits.States == 0 || limits.States > most) {
		limits.States = most
	}
	var result Result
	visited := new(seen)
	first := m.Start()
	visited.add(m.Key(first, nil))
	nodes := []node{{parent: -1}}
	level := []live[S]{{state: first}}
	for len(level) > 0 && result.Violation == nil {
		if limits.Depth > 0 && result.Depth == limits.Depth || limits.States > 0 && len(nodes) >= limits.States {
			break
		}
		next, moves, err := m.step(ctx, visited, level)
		if err != nil {
			return result, err
		}
		result.Moves += moves
		level = level[:0]
		for _, f := range next {
			nodes = append(nodes, f.node)
			if f.err != nil {
				result.Violation = m.story(nodes, f.err)
				break
			}
			level = append(level, live[S]{int32(len(nodes) - 1), f.state})
		}
		if len(level) > 0 {
			result.Depth++
		}
	}
	result.States, result.Fixpoint = len(nodes), len(level) == 0 && result.Violation == nil
	return result, nil
}

// step carries out all moves of the states of a level. It returns the states that are new, or broke a
// property; those that broke one come first.
func (m Model[S]) step(ctx context.Context, visited *seen, level []live[S]) (next []found[S], moves int, err error) {
	const portion = 64
	var mu sync.Mutex
	var workers sync.WaitGroup
	taken := 0
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var own []found[S]
			made := 0
			for {
				mu.Lock()
				from := taken
				taken = min(from+portion, len(level))
				to := taken
				mu.Unlock()
				if from == to || ctx.Err() != nil {
					break
				}
				for i := from; i < to; i++ {
					var n int
					own, n = m.expand(visited, level[i], own)
					made += n
					level[i].state = *new(S) // it is garbage now
				}
			}
			mu.Lock()
			defer mu.Unlock()
			next = append(next, own...)
			moves += made
		})
	}
	workers.Wait()
	slices.SortStableFunc(next, func(a, b found[S]) int {
		switch {
		case a.err != nil && b.err == nil:
			return -1
		case a.err == nil && b.err != nil:
			return 1
		}
		return int(a.node.parent) - int(b.node.parent)
	})
	return next, moves, context.Cause(ctx)
}

// expand carries out the moves of one state, and appends the states that are new or broke a property.
func (m Model[S]) expand(visited *seen, from live[S], to []found[S]) ([]found[S], int) {
	var room [64]Move
	var key [1024]byte
	moves := m.Moves(from.state, room[:0])
	if len(moves) == 0 && (m.End == nil || !m.End(from.state)) {
		to = append(to, found[S]{node: node{parent: from.index}, err: errStuck})
	}
	for _, move := range moves {
		state := m.Copy(from.state)
		err := m.Do(state, move)
		if err != nil || visited.add(m.Key(state, key[:0])) {
			to = append(to, found[S]{node{from.index, move}, state, err})
		}
	}
	return to, len(moves)
}

// story returns the way to the latest of the nodes, which broke a property.
func (m Model[S]) story(nodes []node, broken error) *Story {
	var moves []Move
	for n := nodes[len(nodes)-1]; n.parent >= 0; n = nodes[n.parent] {
		moves = append(moves, n.move)
	}
	slices.Reverse(moves)
	if errors.Is(broken, errStuck) {
		moves = moves[:len(moves)-1] // the last one stands for that there is none
	}
	steps, _ := m.Replay(moves)
	return &Story{Moves: moves, Steps: steps, Err: broken}
}

// Replay makes the given moves from the first state. It returns what each did, and the first property
// that was broken. A move that is not possible where it comes is an error, too: the row is of another model.
func (m Model[S]) Replay(moves []Move) (steps []string, err error) {
	state := m.Start()
	for i, move := range moves {
		if !slices.Contains(m.Moves(state, nil), move) {
			return steps, fmt.Errorf("explore: move %d of %d, %v, is not possible after: %s", i+1, len(moves), move, strings.Join(steps, "; "))
		}
		steps = append(steps, m.Describe(state, move))
		if err := m.Do(state, move); err != nil {
			return steps, err
		}
	}
	return steps, nil
}
