package supervise

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

// A shell may have children, and then become tenure. They are none of its business, and what they
// leave while checks of the health run is not.
func TestProcessesFromBeforeAreSpared(t *testing.T) {
	broker := server(t)
	cmd := exec.Command("/bin/sh", "-c",
		`(sleep 0.2; sleep 1000 & echo $!) & exec "$0" run --broker `+broker+` --ttl 1s --health 'true' --health-every 10ms press -- sleep 1000`, built.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var sleeper int
	if _, err := fmt.Fscan(out, &sleeper); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(sleeper, unix.SIGKILL)
	for deadline := time.Now().Add(await.Patience); !strings.Contains(log.String(), "the child starts"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the child does not start")
		}
	}
	parent := func() int {
		e, ok := readProcess(sleeper)
		if !ok || e.isZombie() {
			t.Error("a process that was there before tenure was ended")
			return cmd.Process.Pid
		}
		return e.parent
	}
	for deadline := time.Now().Add(await.Patience); parent() != cmd.Process.Pid; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process was not left to tenure")
		}
	}
	for checks, deadline := 0, time.Now().Add(await.Patience); checks < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no check is seen")
		}
		entries, _ := descendants(cmd.Process.Pid, nil)
		if slices.ContainsFunc(entries, func(e procEntry) bool { return e.name == "sh" || e.name == "true" }) {
			checks++
		}
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e, ok := readProcess(sleeper); !ok || e.isZombie() {
		t.Error("a process that was there before tenure was ended")
	}
	_ = unix.Kill(sleeper, unix.SIGKILL) // it has the output, too
	_ = await.Result(cmd.Wait)
}
