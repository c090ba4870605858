package failpoint

import (
	"slices"
	"testing"
)

func TestTheHookIsCalledUntilItIsRestored(t *testing.T) {
	var outer, inner []Point
	Hit(AfterApply) // no hook
	end := Set(func(p Point) { outer = append(outer, p) })
	Hit(AfterApply)
	endInner := Set(func(p Point) { inner = append(inner, p) })
	Hit(BeforeCommit)
	endInner()
	Hit(AfterCommit)
	end()
	Hit(BeforeReply)
	if want := []Point{AfterApply, AfterCommit}; !slices.Equal(outer, want) {
		t.Errorf("the outer hook got %q; want %q", outer, want)
	}
	if want := []Point{BeforeCommit}; !slices.Equal(inner, want) {
		t.Errorf("the inner hook got %q; want %q", inner, want)
	}
}

// BenchmarkHit measures a point without a hook.
func BenchmarkHit(b *testing.B) {
	for b.Loop() {
		Hit(AfterApply)
	}
}
