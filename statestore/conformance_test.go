package statestore_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

func TestTheStateMachineFollowsTheProtocol(t *testing.T) {
	statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
		check(t, statestoretest.NewMachine(t, options))
	})
}

var update = flag.Bool("update", false, "rewrite the traces in testdata; read the difference")

// Each file in testdata is a trace: requests, waits, and all that the store replies and notifies.
func TestTheTracesAreAsRecorded(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			recorded, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			store := statestoretest.NewMachine(t, statestore.Options{})
			trace, err := statestoretest.Trace(t, store, string(recorded))
			if err != nil {
				t.Fatal(err)
			}
			if trace == string(recorded) {
				return
			}
			if *update {
				if err := os.WriteFile(path, []byte(trace), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the trace differs (go test ./statestore -update rewrites it):\n%s", difference(string(recorded), trace))
		})
	}
}

// difference returns the first lines that differ.
func difference(recorded, trace string) string {
	a, b := strings.Split(recorded, "\n"), strings.Split(trace, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "recorded: " + a[i] + "\nnow:      " + b[i]
		}
	}
	return "one of them ends early"
}
