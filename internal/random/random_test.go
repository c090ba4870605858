package random

import (
	"slices"
	"testing"
	"time"
)

func draw(n int) (drawn []time.Duration) {
	for range n {
		drawn = append(drawn, Duration(time.Hour))
	}
	return drawn
}

func TestDurationStaysBelowItsLimit(t *testing.T) {
	for range 1000 {
		if d := Duration(3); d < 0 || d >= 3 {
			t.Fatalf("drew %d of 3", d)
		}
	}
	for _, limit := range []time.Duration{0, -1} {
		if d := Duration(limit); d != 0 {
			t.Errorf("drew %d of %d", d, limit)
		}
	}
}

func TestOneSeedDrawsTheSameAgainUntilItIsStopped(t *testing.T) {
	var drawn [4][]time.Duration
	for i, seed := range []uint64{1, 1, 2} {
		stop := Seed(seed)
		drawn[i] = draw(10)
		stop()
	}
	drawn[3] = draw(10)
	if !slices.Equal(drawn[0], drawn[1]) {
		t.Errorf("one seed drew %v and %v", drawn[0], drawn[1])
	}
	if slices.Equal(drawn[0], drawn[2]) || slices.Equal(drawn[0], drawn[3]) {
		t.Error("another seed, or none, drew the same")
	}
}
