package bench_test

import (
	"testing"

	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// Unlike times, allocations are the same on any machine, busy or not.
func TestASetAllocatesLittle(t *testing.T) {
	if testsupport.UnderRace {
		t.Skip("the race detector allocates too")
	}
	ours := newSpeed(t)
	set := func() {
		if err := ours.set(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		set() // until all that is made once has been made
	}
	if got := testing.AllocsPerRun(5000, set); got > wantedAllocations {
		t.Errorf("a Set allocates %.0f times, over both sides, want at most %d", got, wantedAllocations)
	}
}
