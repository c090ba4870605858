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

func TestAWalkGoesThroughClientAndStore(t *testing.T) {
	prerequisite.Long(t, "It compiles all code with counters of coverage, for half a minute")
	t.Chdir("../..")
	all, err := measure(t.Context())
	if got := sum([]string{"a/b.go F", "a/b.go G", "a/c.go F"}); got != "3 functions in 2 files of 1 packages" {
		t.Errorf("sum %q", got)
	}
	for _, name := range []string{" *Lease.Acquire", " *Store.Apply"} {
		if !slices.ContainsFunc(all, func(f string) bool { return strings.HasSuffix(f, name) }) {
			t.Errorf("%v; no%s in %q", err, name, all)
		}
	}
}
