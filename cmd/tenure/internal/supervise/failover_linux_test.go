package supervise

import (
	"flag"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

// failovers is how often each fault is tried: go test -run TestTheProgramIsGone -failovers 20 -v
// prints the smallest time between two programs. It is a little short: the end counts when this
// test sees it.
var failovers = flag.Int("failovers", 1, "how often each fault of a holder is tried")

// faults are what ends a holder, and the program with it.
var faults = []struct {
	name string
	do   func(n *node, network *proxy)
}{
	{"the supervisor is killed", func(n *node, _ *proxy) { n.signal(unix.SIGKILL) }},
	{"the supervisor is stopped", func(n *node, _ *proxy) { n.signal(unix.SIGSTOP) }},
	{"the network is cut", func(_ *node, network *proxy) { network.partition() }},
	{"the guard is killed", func(n *node, _ *proxy) { _ = unix.Kill(n.guard(), unix.SIGKILL) }},
	{"the guard is stopped", func(n *node, _ *proxy) { _ = unix.Kill(n.guard(), unix.SIGSTOP) }},
	{"the supervisor is told to end", func(n *node, _ *proxy) { n.signal(unix.SIGTERM) }},
}

// A program and all that it started are gone before another node's program starts, whatever they
// do about signals, and whatever happens to their holder. The lock of a file shows an overlap.
func TestTheProgramIsGoneBeforeTheNextHoldersStarts(t *testing.T) {
	for _, fault := range faults {
		for _, role := range []string{"plain", "obstinate", "group", "session", "daemon", "frozen", "headless"} {
			if role != "daemon" && !prerequisite.LongRun() {
				continue
			}
			t.Run(fault.name+"/"+role, func(t *testing.T) {
				t.Parallel()
				broker := server(t)
				var distances []time.Duration
				for range *failovers {
					distances = append(distances, failOver(t, broker, role, fault.do))
				}
				slices.Sort(distances)
				t.Logf("%d failovers; from the end of the program to the start of the next: at least %v, at most %v",
					len(distances), distances[0], distances[len(distances)-1])
			})
		}
	}
}

// failOver lets a standby take over from a holder, and returns how long no program ran.
func failOver(t *testing.T, broker, role string, fault func(*node, *proxy)) time.Duration {
	t.Helper()
	lock := filepath.Join(t.TempDir(), "lock")
	network := startProxy(t, broker, nil)
	flags := []string{"run", "--ttl", "1s", "--grace", "100ms", t.Name()}
	active := startNode(t, lock, network.address(), role, flags...)
	active.awaitStart()
	standby := startNode(t, lock, broker, "polite", flags...)
	fault(active, network)
	gone := active.awaitGone()
	started := standby.awaitStart()
	active.trySignal(unix.SIGCONT)
	active.trySignal(unix.SIGKILL)
	standby.signal(unix.SIGTERM)
	standby.awaitExit()
	return started - gone
}
