package supervise

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
)

// Ctrl-C at any moment leaves no child and no lease: while tenure starts, connects, campaigns,
// starts its guard, and while the program runs.
func TestAnInterruptAtAnyMomentLeavesNoProgramAndNoLease(t *testing.T) {
	t.Parallel()
	broker := server(t)
	client := dial(t, broker)
	for i, after := 0, time.Duration(0); after < 120*time.Millisecond; i++ {
		verb := []string{"run", "lock"}[i%2]
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "session", verb, "--ttl", "10s", "--grace", "100ms", "press")
		time.Sleep(after) // any moment is right
		n.signal(unix.SIGINT)
		code := n.awaitExit()
		if code != 130 && code != 137 { // the program ignores everything
			t.Errorf("%s: exit code %d after an interrupt at %v", verb, code, after)
		}
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		if entry, err := client.Get(ctx, "press"); err != nil || entry.Exists {
			t.Errorf("%s: after an interrupt at %v the store has %q: %v", verb, after, entry.Value, err)
		}
		cancel()
		// The lock of the file is free when the program and all that it started are gone.
		lock, err := os.OpenFile(n.lockFile, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s: after an interrupt at %v a process of the program lives: %v", verb, after, err)
		}
		_ = lock.Close()
		if after += 500 * time.Microsecond; after > 20*time.Millisecond {
			after += 10 * time.Millisecond
		}
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "plain", "run", "press")
	n.awaitStart()
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGUSR1, unix.SIGTERM} {
		n.signal(s)
		got := n.awaitLine("got ")
		if got == unix.SIGCONT.String() { // it follows SIGTERM, for a program that is stopped, and may be handled before
			got = n.awaitLine("got ")
		}
		if got != s.String() {
			t.Errorf("the program got %q, want %q", got, s)
		}
	}
	if code := n.awaitExit(); code != 128+int(unix.SIGTERM) {
		t.Errorf("exit code %d, want the code of a program that SIGTERM ended", code)
	}
}

func TestASecondInterruptKillsAProgramThatIgnoresTheFirst(t *testing.T) {
	t.Parallel()
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", "run", "--ttl", "10m", "--grace", "1m", "press")
	n.awaitStart()
	n.signal(unix.SIGINT)
	n.awaitLine("got interrupt")
	noted := time.Now()
	await.Until(func() bool { return time.Since(noted) > 250*time.Millisecond }) // one within 100 ms would count as the first
	n.signal(unix.SIGINT)
	if code := n.awaitExit(); code != 128+int(unix.SIGKILL) {
		t.Errorf("exit code %d, want the code of a program that was killed", code)
	}
	awaitFree(t, broker, "press", await.Patience)
}

// A lease that was deleted may have another holder at once, so there is no time for what is left of a grace.
func TestAProgramThatIsBeingStoppedIsKilledWhenItsLeaseIsTaken(t *testing.T) {
	t.Parallel()
	broker := server(t)
	client := dial(t, broker)
	const grace = 9 * time.Second // much longer than a kill takes
	nodes := make(map[string]*node)
	for _, verb := range []string{"run", "lock"} {
		nodes[verb] = startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate",
			verb, "--ttl", "1m", "--grace", grace.String(), "--log-level", "debug", "press/"+verb)
	}
	for verb, n := range nodes {
		n.awaitStart()
		awaitLog(t, n, "verb=KEYNOTIFY") // from now on it hears of a deletion at once
		stopped := now()
		n.signal(unix.SIGTERM)
		n.awaitLine("got terminated")
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		if _, err := client.Del(ctx, "press/"+verb, transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		if gone := n.awaitGone(); gone-stopped >= grace {
			t.Errorf("%s: the program was gone %v after SIGTERM, and had its whole grace without its lease", verb, gone-stopped)
		}
		if code := n.awaitExit(); code != 128+int(unix.SIGKILL) || !strings.Contains(n.log.String(), "the lease was deleted") {
			t.Errorf("%s: exit code %d, want the code for a program that was killed, and the cause", verb, code)
		}
	}
}

// PR_SET_PDEATHSIG is what is left then. (What the program started can live on.)
func TestTheProgramDiesWithSupervisorAndGuard(t *testing.T) {
	t.Parallel()
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", "run", "press")
	n.awaitStart()
	guard := n.guard()
	if err := unix.Kill(guard, unix.SIGSTOP); err != nil { // it does not see the end of the supervisor
		t.Fatal(err)
	}
	n.signal(unix.SIGKILL)
	if err := unix.Kill(guard, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.awaitGone()
}

// The guard hears of renewals: a program outlives the first deadlines by far.
func TestAProgramRunsForManyTTLs(t *testing.T) {
	t.Parallel()
	broker := server(t)
	network := startProxy(t, broker, nil)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address(), "polite", "lock", "--ttl", "1s", "press")
	n.awaitStart()
	network.awaitTraffic(24) // twelve renewals: one each sixth of the TTL
	n.signal(unix.SIGUSR1)
	n.awaitLine("got user defined signal 1")
	n.signal(unix.SIGTERM)
	if code := n.awaitExit(); code != 0 && code != 137 { // the grace is short on a busy machine
		t.Errorf("exit code %d, want the program's, 0", code)
	}
}

// With --at-least, a signal that comes earlier lets the lease run out, whether the program runs or has ended.
// Otherwise the next machine would run it again at once.
func TestASignalBeforeAtLeastLetsTheLeaseRunOut(t *testing.T) {
	t.Parallel()
	broker := server(t)
	client := dial(t, broker)
	for name, test := range map[string]struct {
		role, awaits string
		code         int
	}{
		"the program has ended": {"leaves", "the lease is still held", 7},
		"the program runs":      {"polite", "the child starts", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, test.role,
				"lock", "--at-least", "1h", "--ttl", "1m", "--instant", "--client-id", test.role, test.role)
			n.awaitStart()
			awaitLog(t, n, test.awaits)
			n.signal(unix.SIGTERM)
			if code := n.awaitExit(); code != test.code {
				t.Errorf("exit code %d, want the program's, %d", code, test.code)
			}
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			if entry, err := client.Get(ctx, test.role); err != nil || !entry.Exists {
				t.Errorf("the lease was released: %v", err)
			}
		})
	}
}
