package fencing_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

func sortable(t *testing.T, token hlc.Token) string {
	t.Helper()
	text, err := fencing.SortableText(token)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheSortableTextHasOneWidth(t *testing.T) {
	const want = "0000001696374425000:00000000000000000042:StateStore"
	if got := sortable(t, hlc.Token{Wall: 1696374425000, Counter: 42, Node: "StateStore"}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	const largest = "9223372036854775807:18446744073709551615:n"
	if got := sortable(t, hlc.Token{Wall: math.MaxInt64, Counter: math.MaxUint64, Node: "n"}); got != largest || len(got) != 41+1 {
		t.Errorf("%s, want %s", got, largest)
	}
	longest := hlc.Token{Wall: 1, Node: strings.Repeat("n", 983)}
	if got, err := hlc.ParseToken(sortable(t, longest)); err != nil || got != longest {
		t.Errorf("the longest node does not parse back: %v", err)
	}
}

// agree checks that two texts are in the order of their tokens.
func agree(t *testing.T, a, b hlc.Token) {
	t.Helper()
	textA, textB := sortable(t, a), sortable(t, b)
	if got, want := strings.Compare(textA, textB), a.Compare(b); got != want {
		t.Errorf("%v and %v compare as %d, their texts %q and %q as %d", a, b, want, textA, textB, got)
	}
	if textA <= "" {
		t.Errorf("%q is not above the empty text", textA)
	}
	if back, err := hlc.ParseToken(textA); err != nil || back != a {
		t.Errorf("%q parses back as %v, %v", textA, back, err)
	}
}

func TestInvariant16TheOrderOfSortableTextsIsThatOfTheTokens(t *testing.T) {
	walls := []int64{0, 1, 9, 10, 99, 100, 1696374425000, math.MaxInt64}
	counters := []uint64{0, 1, 9, 10, 11, 100000, math.MaxUint64}
	nodes := []string{"a", "b", "aa", "a!", "a~", "A", "Z", "ü", "9", "10", " "}
	token := func() hlc.Token {
		return hlc.Token{
			Wall:    walls[rand.N(len(walls))],
			Counter: counters[rand.N(len(counters))],
			Node:    nodes[rand.N(len(nodes))],
		}
	}
	for range 20_000 {
		agree(t, token(), token())
		agree(t, hlc.Token{Wall: rand.Int64() >> rand.N(63), Counter: rand.Uint64() >> rand.N(64), Node: "n"},
			hlc.Token{Wall: rand.Int64() >> rand.N(63), Counter: rand.Uint64() >> rand.N(64), Node: "n"})
	}
}

func FuzzSortableText(f *testing.F) {
	f.Fuzz(func(t *testing.T, wallA int64, counterA uint64, nodeA string, wallB int64, counterB uint64, nodeB string) {
		a := hlc.Token{Wall: wallA, Counter: counterA, Node: nodeA}
		b := hlc.Token{Wall: wallB, Counter: counterB, Node: nodeB}
		for _, token := range []hlc.Token{a, b} {
			_, malformed := token.MarshalText()
			if _, err := fencing.SortableText(token); (err == nil) != (malformed == nil && !token.IsZero()) {
				t.Fatalf("%v: %v", token, err)
			} else if err != nil {
				return
			}
		}
		agree(t, a, b)
	})
}
