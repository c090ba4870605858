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

func TestAPairGoesOnWhileItsReplicatedStoreFailsOver(t *testing.T) {
	prerequisite.Long(t, "it takes a minute")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	program := compiled.Program{Folder: "."}
	t.Cleanup(program.Remove)
	said, err := exec.CommandContext(ctx, program.Path(t), "--ttl", "12s", "--etcd-ttl", "2s").CombinedOutput()
	if err != nil || strings.Count(string(said), "\nok  ") != 8 {
		t.Errorf("%v:\n%s", err, said)
	}
}
