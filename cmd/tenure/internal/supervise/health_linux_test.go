package supervise

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// A node whose health check fails does not campaign, and one that becomes unhealthy hands over.
// What a check leaves behind is ended.
func TestAnUnhealthyNodeHandsOver(t *testing.T) {
	broker := server(t)
	dir := t.TempDir()
	lock, healthy := filepath.Join(dir, "lock"), filepath.Join(dir, "healthy")
	check := `setsid sh -c 'exec sleep 1000' & test -e ` + healthy
	sick := startNode(t, lock, broker, "polite", "run", "--ttl", "1s", "--health", check, "--health-every", "20ms", "press")
	awaitLog(t, sick, "--health: exit status 1")
	if err := os.WriteFile(healthy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sick.awaitStart()
	other := startNode(t, lock, broker, "polite", "run", "--ttl", "1s", "press")
	if err := os.Remove(healthy); err != nil {
		t.Fatal(err)
	}
	sick.awaitGone()
	other.awaitStart()
	if left, _ := descendants(sick.cmd.Process.Pid, nil); len(left) > 2 {
		t.Errorf("checks have left %d processes: %v", len(left), left)
	}
}

// The program of a check that hangs is killed, with what it started.
func TestACheckThatHangsIsKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := Check(ctx, `echo "it hangs"; setsid sleep 1000 & sleep 1000`, os.Environ())
	if err == nil || !strings.Contains(err.Error(), "killed") || !strings.Contains(err.Error(), "it hangs") {
		t.Errorf("%v, want killed, and what it said", err)
	}
	for deadline := time.Now().Add(await.Patience); ; helpers.sweep(0) {
		left, _ := descendants(os.Getpid(), nil)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it has left %v", left)
		}
	}
}
