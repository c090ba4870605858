//go:build unix

package main_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAPairGoesOnWhileItsReplicatedStoreFailsOver(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	path := filepath.Join(t.TempDir(), "failover")
	if said, err := exec.CommandContext(ctx, "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
	said, err := exec.CommandContext(ctx, path, "--ttl", "12s", "--etcd-ttl", "2s").CombinedOutput()
	if err != nil || strings.Count(string(said), "\nok  ") != 8 {
		t.Errorf("%v:\n%s", err, said)
	}
}
