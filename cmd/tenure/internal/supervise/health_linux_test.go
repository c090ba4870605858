package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
)

// A node whose health check fails does not campaign, and one that becomes unhealthy hands over.
func TestAnUnhealthyNodeHandsOver(t *testing.T) {
	t.Parallel()
	broker := server(t)
	dir := t.TempDir()
	lock, healthy := filepath.Join(dir, "lock"), filepath.Join(dir, "healthy")
	check := `test -e ` + healthy
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
}

// What leaves the group of a check is killed, too: a node that checks for ever does not fill the
// machine.
func TestWhatChecksLeaveIsKilled(t *testing.T) {
	t.Parallel()
	broker := server(t)
	checks := filepath.Join(t.TempDir(), "checks")
	check := ownSession("echo >>" + checks + "; exec sleep 1000")
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "run", "--ttl", "1s", "--health", check+" & sleep 0.1", "--health-every", "10ms", "press")
	n.awaitStart()
	awaitSize(t, checks, 10)
	await.Until(func() bool { // all but the processes of the latest check
		left, err := descendants(n.cmd.Process.Pid, nil)
		if err != nil {
			t.Fatal(err)
		}
		sleeping := 0
		for _, e := range left {
			if e.name == "sleep" && !e.isZombie() {
				sleeping++
			}
		}
		return sleeping <= 2
	})
}

// awaitSize waits until a file has so many bytes.
func awaitSize(t *testing.T, file string, size int64) {
	t.Helper()
	await.Until(func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() >= size
	})
}

// awaitMore waits until a file has so many bytes more than now.
func awaitMore(t *testing.T, file string, bytes int64) {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	awaitSize(t, file, info.Size()+bytes)
}

// The program of a check that hangs is killed, with what it started, even if that has left the group.
func TestACheckThatHangsIsKilled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	left := filepath.Join(t.TempDir(), "left")
	checked := make(chan error, 1)
	line := `echo "it hangs"; ` + ownSession("echo $$ >"+left+"; exec sleep 1000") + " & sleep 1000"
	go func() { checked <- Check(ctx, "--health", line, os.Environ()) }()
	awaitSize(t, left, 2)
	cancel(errors.New("too late"))
	err := await.Receive(checked)
	if err == nil || !strings.Contains(err.Error(), "killed: too late: it hangs") {
		t.Errorf("%v, want killed, why, and what it said", err)
	}
	await.Until(func() bool { return reapLeft(0, helpers.pids) }) // it takes results, and kills nothing
}
