package supervise

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
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
	var tests sync.WaitGroup
	for i := range 6 { // it is a matter of chance which of two things the supervisor sees first
		verb := []string{"run", "lock"}[i%2]
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", verb, "--ttl", "10s", "--grace", grace.String(), fmt.Sprint("press-", i))
		n.awaitStart()
		guard := n.guard()
		programs, err := descendants(guard, nil)
		if err != nil || len(programs) != 1 {
			t.Fatal(programs, err)
		}
		tests.Go(func() {
			n.trySignal(unix.SIGTERM)
			n.awaitLine("got terminated")
			overdue := time.Now().Add(grace + guardPatience)
			n.trySignal(unix.SIGSTOP)
			awaitState(n.cmd.Process.Pid, 'T')
			_ = unix.Kill(programs[0].pid, unix.SIGKILL)
			awaitState(guard, 'Z')
			time.Sleep(time.Until(overdue)) // the time is what is tested
			n.trySignal(unix.SIGCONT)
			if code := n.awaitExit(); code != 128+int(unix.SIGKILL) || strings.Contains(n.log.String(), "without its guard") {
				t.Errorf("%s: exit code %d, want that of the program, and no guard that failed, in\n%s", verb, code, n.log.String())
			}
		})
	}
	await.Done(tests.Wait)
}

// A guard that has confirmed a renewal is not taken for one that does not answer because the
// supervisor stood still before it read that.
func TestAGuardThatAnsweredAStoppedSupervisorIsNotKilled(t *testing.T) {
	t.Parallel()
	broker := server(t)
	const ttl = 8 * time.Second
	var tests sync.WaitGroup
	var nodes []*node
	for i := range 6 {
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "lock", "--ttl", ttl.String(), "--log-level", "debug", fmt.Sprint("press-", i))
		n.awaitStart()
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		tests.Go(func() {
			guard := n.guard()
			renewals := func() int { return strings.Count(n.log.String(), "verb=SET") }
			if err := unix.Kill(guard, unix.SIGSTOP); err != nil {
				t.Error(err)
			}
			before := renewals()
			await.Until(func() bool { return renewals() > before })
			sent := time.Now()
			time.Sleep(ttl / 40) // the supervisor tells the guard of the renewal
			n.signal(unix.SIGSTOP)
			awaitState(n.cmd.Process.Pid, 'T')
			if err := unix.Kill(guard, unix.SIGCONT); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Until(sent.Add(ttl * 3 / 10))) // longer than a guard may be silent
			n.signal(unix.SIGCONT)
			before = renewals()
			await.Until(func() bool { return renewals() > before || strings.Contains(n.log.String(), "does not answer") })
			n.signal(unix.SIGTERM)
			n.awaitExit()
			if strings.Contains(n.log.String(), "does not answer") {
				t.Errorf("the guard was killed:\n%s", n.log.String())
			}
		})
	}
	await.Done(tests.Wait)
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
