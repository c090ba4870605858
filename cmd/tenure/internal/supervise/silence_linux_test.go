package supervise

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
)

// awaitState waits until /proc shows a process in this state.
func awaitState(pid int, state byte) {
	await.Until(func() bool {
		e, ok := readProcess(pid)
		return ok && e.state == state
	})
}

// The program ends in time, but the supervisor is stopped, and reads what the guard said about it
// when the guard is long overdue.
func TestTheCodeOfTheProgramOutlivesAStopOfTheSupervisor(t *testing.T) {
	t.Parallel()
	broker := server(t)
	const grace = time.Second
	for _, verb := range []string{"run", "lock"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", verb, "--ttl", "10s", "--grace", grace.String(), verb)
			n.awaitStart()
			guard := n.guard()
			programs, err := descendants(guard, nil)
			if err != nil || len(programs) != 1 {
				t.Fatal(programs, err)
			}
			n.signal(unix.SIGTERM)
			n.awaitLine("got terminated")
			overdue := time.Now().Add(grace + guardPatience)
			n.signal(unix.SIGSTOP)
			awaitState(n.cmd.Process.Pid, 'T')
			_ = unix.Kill(programs[0].pid, unix.SIGKILL)
			awaitState(guard, 'Z')
			time.Sleep(time.Until(overdue)) // the time is what is tested
			n.signal(unix.SIGCONT)
			if code := n.awaitExit(); code != 128+int(unix.SIGKILL) || strings.Contains(n.log.String(), "without its guard") {
				t.Errorf("%s: exit code %d, want the code of the program, and no guard that failed", verb, code)
			}
		})
	}
}

// A guard that has confirmed a renewal is not taken for one that does not answer because the
// supervisor stood still before it read that: only calls count.
func TestAGuardThatAnsweredAStoppedSupervisorIsNotKilled(t *testing.T) {
	c := &child{Options: Options{TTL: 8 * time.Second, Grace: 2 * time.Second}, sent: 2}
	if c.isOverdue(now() + time.Hour) {
		t.Error("one look, an hour late, and the guard is taken for silent")
	}
	calls := 1
	for !c.isOverdue(now()) {
		calls++
	}
	if silent := time.Duration(calls) * c.interval(); silent < 2*time.Second || silent > 3*time.Second {
		t.Errorf("a guard may be silent for %v", silent)
	}
}

// The command that runs after the program has its time when it has started, and not before.
func TestAGuardThatDoesNotKillIsSeenWhateverRunsAfterTheProgram(t *testing.T) {
	c := &child{Options: Options{TTL: 10 * time.Second, Grace: time.Second, After: "true"}, stopping: true, killAt: time.Second}
	late := c.killAt + c.patience() + 1
	if !c.isOverdue(late) {
		t.Error("the program lives on, and its guard is not late")
	}
	c.note(report{Clean: &cleanUp{PID: 1 << 30, Kill: late}})
	helpers.setProgram(0)
	if c.isOverdue(late) || !c.isOverdue(late+c.patience()+1) {
		t.Error("the command after the program has no time, or has too much")
	}
}

// A guard that does not kill is seen within the margin, whatever part of the TTL the grace is: the
// supervisor's own kill must not come after the lease.
func TestALateKillFallsIntoTheMargin(t *testing.T) {
	for ttl := lease.MinTTL; ttl < 48*time.Hour; ttl *= 2 {
		for part := range 10 {
			c := &child{Options: Options{TTL: ttl, Grace: ttl * time.Duration(part) / 10}, stopping: true}
			if late := c.patience() + c.interval(); late > Margin(ttl)*2/3 {
				t.Errorf("TTL %v, grace %v: the supervisor kills %v after the guard should have, and the margin is %v", ttl, c.Grace, late, Margin(ttl))
			}
		}
	}
}
