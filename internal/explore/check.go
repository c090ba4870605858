package explore

import (
	"os"
	"runtime"
	"testing"
)

// Whole reports whether the environment variable EXPLORE asks for the scopes that take minutes: make explore sets it.
func Whole() bool { return os.Getenv("EXPLORE") != "" }

// Check walks through a model, and logs what it covered and the memory of the process. The test fails if a
// property is broken, or the key of a state lacks something. Without limits only a broken property, or the race
// detector, ends a walk early.
func Check[S any](t *testing.T, m Model[S], limits Limits) {
	t.Helper()
	result, err := m.Walk(t.Context(), limits)
	if err != nil {
		t.Fatal(err)
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("%v, %d MiB", result, memory.Sys>>20)
	if story := result.Violation; story != nil {
		t.Errorf("a property is broken after %d steps:\n%v", len(story.Moves), story)
	}
	states := 1000
	switch {
	case UnderRace:
		states = 50
	case Whole():
		states = 20_000
	}
	if err := m.CheckKey(states); err != nil {
		t.Error(err)
	}
}
