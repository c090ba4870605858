package explore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/explore"
)

// A jug of each size; a move fills one, empties one, or pours one into the other.
type jugs [2]uint8

var sizes = jugs{3, 5}

const (
	fill = iota
	empty
	pour
)

// puzzle is the model of the jugs. A jug with exactly the amount wanted breaks its property.
func puzzle(wanted uint8) explore.Model[*jugs] {
	return explore.Model[*jugs]{
		Start: func() *jugs { return new(jugs) },
		Copy:  func(s *jugs) *jugs { c := *s; return &c },
		Moves: func(_ *jugs, moves []explore.Move) []explore.Move {
			for kind := range uint8(3) {
				moves = append(moves, explore.Move{Kind: kind}, explore.Move{Kind: kind, A: 1})
			}
			return moves
		},
		Do: func(s *jugs, m explore.Move) error {
			one, other := &s[m.A], &s[1-m.A]
			switch m.Kind {
			case fill:
				*one = sizes[m.A]
			case empty:
				*one = 0
			case pour:
				poured := min(*one, sizes[1-m.A]-*other)
				*one -= poured
				*other += poured
			}
			if wanted > 0 && (s[0] == wanted || s[1] == wanted) {
				return fmt.Errorf("a jug holds %d", wanted)
			}
			return nil
		},
		Describe: func(s *jugs, m explore.Move) string {
			return [...]string{"fill", "empty", "pour"}[m.Kind] + " " + fmt.Sprint(sizes[m.A])
		},
		Key: func(s *jugs, key []byte) []byte { return append(key, s[:]...) },
	}
}

func walk[S any](t *testing.T, m explore.Model[S], limits explore.Limits) explore.Result {
	t.Helper()
	result, err := m.Walk(t.Context(), limits)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestAWalkVisitsEachStateOnce(t *testing.T) {
	// 16 of the 24 amounts can be reached: those with a jug that is full or empty.
	result := walk(t, puzzle(0), explore.Limits{})
	explore.Check(t, puzzle(0), explore.Limits{})
	if result.States != 16 || result.Moves != 16*6 || !result.Fixpoint || result.Violation != nil {
		t.Errorf("%v", result)
	}
}

func TestTheStoryOfAViolationIsTheShortest(t *testing.T) {
	m := puzzle(4)
	result := walk(t, m, explore.Limits{})
	if result.Violation == nil {
		t.Fatalf("%v", result)
	}
	want := []string{"fill 5", "pour 5", "empty 3", "pour 5", "fill 5", "pour 5"}
	if !slices.Equal(result.Violation.Steps, want) || result.Fixpoint {
		t.Errorf("%v", result.Violation)
	}
	if text := result.Violation.String(); !strings.Contains(text, "6. pour 5") || !strings.Contains(text, "a jug holds 4") ||
		!strings.Contains(text, "{0, 1, 0, 0}, {2, 1, 0, 0}, {1, 0, 0, 0},") {
		t.Error(text)
	}
	if steps, err := m.Replay(result.Violation.Moves); !slices.Equal(steps, want) || err == nil || err.Error() != "a jug holds 4" {
		t.Errorf("replayed: %v, %v", steps, err)
	}
	if _, err := m.Replay([]explore.Move{{Kind: 9}}); err == nil || !strings.Contains(err.Error(), "not possible") {
		t.Errorf("%v", err)
	}
}
