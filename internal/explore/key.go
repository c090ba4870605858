package explore

import (
	"bytes"
	"fmt"
	"slices"
)

// reached is a state, and a way to it.
type reached[S any] struct {
	state S
	moves []Move
}

// CheckKey checks what a walk relies on, for about as many of the first states as given: of two states with one
// key, the moves lead to the same keys. The error has a way to each of two states for which that is not so.
func (m Model[S]) CheckKey(states int) error {
	first := reached[S]{state: m.Start()}
	seen := map[sum]reached[S]{sumOf(m.Key(first.state, nil)): first}
	for level := []reached[S]{first}; len(level) > 0; level = level[1:] {
		from := level[0]
		for _, move := range m.Moves(from.state, nil) {
			to := reached[S]{m.Copy(from.state), append(slices.Clip(from.moves), move)}
			if m.Do(to.state, move) != nil {
				continue
			}
			key := sumOf(m.Key(to.state, nil))
			if other, again := seen[key]; !again {
				seen[key] = to
				level = append(level, to)
			} else if !slices.Equal(m.futures(other.state), m.futures(to.state)) {
				one, _ := m.Replay(other.moves)
				two, _ := m.Replay(to.moves)
				return fmt.Errorf("two states have one key, and their moves lead to different keys:\n%q\n%q", one, two)
			}
		}
		if len(seen) >= states {
			break
		}
	}
	return nil
}

// futures returns the keys to which the moves of a state lead, in an order of their own.
func (m Model[S]) futures(s S) (keys []sum) {
	for _, move := range m.Moves(s, nil) {
		next := m.Copy(s)
		key := sum{}
		if m.Do(next, move) == nil {
			key = sumOf(m.Key(next, nil))
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b sum) int { return bytes.Compare(a[:], b[:]) })
	return keys
}
