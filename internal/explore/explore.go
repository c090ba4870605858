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
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	row := strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Moves), "[]"), " ", ", ")
	fmt.Fprintf(&text, "     %v\n     as a row: []explore.Move{%s}\n", s.Err, row)
	return text.String()
}

// errStuck is the error of a state in which nothing can happen any more.
var errStuck = errors.New("nothing can happen any more")

// sum identifies a key.
type sum [16]byte

func sumOf(key []byte) sum {
	full := sha256.Sum256(key)
	return sum(full[:16])
}

// node is a state that was visited: how the walk came to it.
type node struct {
	parent int32 // its index; -1 of the first
	move   Move
}

// found is a state that a worker came to first.
type found[S any] struct {
	node
	state S
	err   error
}

// seen is the set of sums.
type seen struct {
	mu   sync.Mutex
	sums map[sum]struct{}
}

// add reports whether a key is new.
func (s *seen) add(key []byte) bool {
	sum := sumOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.sums)
	s.sums[sum] = struct{}{}
	return len(s.sums) > before
}

// Walk visits the states of a model until it has visited all, or reaches a limit, or a property is broken. The error
// is the end of ctx.
func (m Model[S]) Walk(ctx context.Context, limits Limits) (Result, error) {
	if most := 500; UnderRace && (limits.States == 0 || limits.States > most) {
		limits.States = most
	}
	var result Result
	visited := &seen{sums: make(map[sum]struct{})}
	first := m.Start()
	visited.add(m.Key(first, nil))
	nodes := []node{{parent: -1}}
	level := []found[S]{{state: first}}
	for len(level) > 0 && result.Violation == nil {
		if limits.Depth > 0 && result.Depth == limits.Depth || limits.States > 0 && len(nodes) >= limits.States {
			break
		}
		next, moves := m.step(ctx, visited, level, len(nodes)-len(level))
		if ctx.Err() != nil {
			return result, context.Cause(ctx)
		}
		result.Moves += moves
		for _, f := range next {
			if nodes = append(nodes, f.node); f.err != nil && result.Violation == nil {
				result.Violation = m.story(nodes, f.err)
			}
		}
		if level = next; len(level) > 0 {
			result.Depth++
		}
	}
	result.States, result.Fixpoint = len(nodes), len(level) == 0
	return result, nil
}

// step carries out all moves of the states of a level, the first of which has an index. It returns the states that are
// new, or broke a property, in an order that does not depend on the workers.
func (m Model[S]) step(ctx context.Context, visited *seen, level []found[S], index int) (next []found[S], moves int) {
	const portion = 64
	var taken atomic.Int64
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var own []found[S]
			made := 0
			for ctx.Err() == nil {
				end := int(taken.Add(portion))
				if end-portion >= len(level) {
					break
				}
				for i := end - portion; i < min(end, len(level)); i++ {
					var n int
					own, n = m.expand(visited, level[i].state, int32(index+i), own)
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
	slices.SortStableFunc(next, func(a, b found[S]) int { return cmp.Compare(a.parent, b.parent) })
	return next, moves
}

// expand carries out the moves of one state, and appends the states that are new or broke a property.
func (m Model[S]) expand(visited *seen, from S, index int32, to []found[S]) ([]found[S], int) {
	var room [64]Move
	var key [1024]byte
	moves := m.Moves(from, room[:0])
	if len(moves) == 0 && (m.End == nil || !m.End(from)) {
		to = append(to, found[S]{node: node{parent: index}, err: errStuck})
	}
	for _, move := range moves {
		state := m.Copy(from)
		err := m.Do(state, move)
		if err != nil || visited.add(m.Key(state, key[:0])) {
			to = append(to, found[S]{node{index, move}, state, err})
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
