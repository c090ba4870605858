//go:build unix

package main_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/compiled"
)

func TestAPairGoesOnWhileItsReplicatedStoreFailsOver(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	program := compiled.Program{Folder: "."}
	t.Cleanup(program.Remove)
	said, err := exec.CommandContext(ctx, program.Path(t), "--ttl", "12s", "--etcd-ttl", "2s").CombinedOutput()
	if err != nil || strings.Count(string(said), "\nok  ") != 8 {
		t.Errorf("%v:\n%s", err, said)
	}
}
