package supervise

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

// faults are what ends a holder, and the program with it.
var faults = []struct {
	name string
	do   func(n *node, network *proxy)
}{
	{"the supervisor is killed", func(n *node, _ *proxy) { n.signal(unix.SIGKILL) }},
	{"the supervisor is stopped", func(n *node, _ *proxy) { n.signal(unix.SIGSTOP) }},
	{"the network is cut", func(_ *node, network *proxy) { network.cut() }},
	{"the guard is killed", func(n *node, _ *proxy) { _ = unix.Kill(n.guard(), unix.SIGKILL) }},
	{"the guard is stopped", func(n *node, _ *proxy) { _ = unix.Kill(n.guard(), unix.SIGSTOP) }},
	{"the supervisor is told to end", func(n *node, _ *proxy) { n.signal(unix.SIGTERM) }},
}

// A program and all that it started are gone before another node's program starts, whatever they
// do about signals, and whatever happens to their holder. The lock of a file shows an overlap.
func TestTheProgramIsGoneBeforeTheNextHoldersStarts(t *testing.T) {
	for _, fault := range faults {
		for _, role := range []string{"plain", "obstinate", "group", "session", "daemon", "frozen"} {
			if role != "daemon" && !prerequisite.LongRun() {
				continue
			}
			t.Run(fault.name+"/"+role, func(t *testing.T) {
				t.Parallel()
				failOver(t, role, fault.do)
			})
		}
	}
}

// failOver lets a standby take over from a holder.
func failOver(t *testing.T, role string, fault func(*node, *proxy)) {
	broker, lock := server(t), filepath.Join(t.TempDir(), "lock")
	network := startProxy(t, broker, nil)
	flags := []string{"run", "--ttl", "1s", "--grace", "100ms", "press"}
	active := startNode(t, lock, network.address(), role, flags...)
	active.awaitStart()
	standby := startNode(t, lock, broker, "polite", flags...)
	fault(active, network)
	active.awaitGone()
	standby.awaitStart() // it fails the test if the lock of the file was taken
	active.trySignal(unix.SIGKILL)
}
