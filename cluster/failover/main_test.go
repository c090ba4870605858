//go:build unix

package main_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// As root on Linux the machines are network namespaces, and two more steps cut the active store off.
func TestAPairGoesOnWhileItsStoresAndMachinesFail(t *testing.T) {
	prerequisite.Long(t, "it takes four minutes")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	program := compiled.Program{Folder: "."}
	t.Cleanup(program.Remove)
	cmd := exec.CommandContext(ctx, program.Path(t), "--ttl", "12s") // lasts on a busy machine
	cmd.Dir = ".."
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it removes what it made
	cmd.WaitDelay = time.Minute
	said, err := cmd.CombinedOutput()
	checks := 12
	if strings.Contains(string(said), "left out: active store") {
		checks = 10
	}
	if err != nil || strings.Count(string(said), "\nok  ") != checks {
		t.Errorf("%v, want %d checks:\n%s", err, checks, said)
	}
}
