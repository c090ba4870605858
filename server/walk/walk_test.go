package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

func TestAFunctionHasRunIfAPartOfItHas(t *testing.T) {
	got := ran("github.com/tenurelock/tenure/lease/lease.go:49:\t\tNew\t\t\t100.0%\n" +
		"github.com/tenurelock/tenure/lease/lease.go:70:\t\t*Lease.Acquire\t\t0.4%\n" +
		"github.com/tenurelock/tenure/lease/lease.go:90:\t\t*Lease.Name\t\t0.0%\n" +
		"github.com/tenurelock/tenure/server/inbound.go:9:\tbox[go.shape.int].put\t50.0%\n" +
		"github.com/tenurelock/tenure/server/walk/main.go:80:\tacquire\t\t\t61.5%\n" +
		"total\t\t\t(statements)\t12.3%\n")
	want := []string{"lease/lease.go New", "lease/lease.go *Lease.Acquire", "server/inbound.go box[go.shape.int].put"}
	if !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
	if got, want := sum(got), "3 functions in 2 files of 2 packages"; got != want {
		t.Errorf("sum %q, want %q", got, want)
	}
}

func TestAWalkGoesThroughClientAndStore(t *testing.T) {
	prerequisite.Long(t, "It compiles all code with counters of coverage, for half a minute")
	t.Chdir("../..")
	all, err := measure(t.Context())
	for _, name := range []string{" *Lease.Acquire", " *Store.Apply"} {
		if !slices.ContainsFunc(all, func(f string) bool { return strings.HasSuffix(f, name) }) {
			t.Errorf("%v; no%s in %q", err, name, all)
		}
	}
}
