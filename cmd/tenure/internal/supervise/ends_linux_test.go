package supervise

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

// cutsAt is for networks that are cut by a command of the store.
func cutsAt(command string) func([]byte) bool {
	return func(sent []byte) bool { return bytes.Contains(sent, []byte("\r\n"+command+"\r\n")) }
}

// interruptUntilItEnds signals a supervisor until it ends, and returns its exit code.
func (n *node) interruptUntilItEnds() int {
	n.t.Helper()
	await.Until(func() bool {
		n.trySignal(unix.SIGTERM)
		return len(n.over) > 0
	})
	return n.awaitExit()
}

// A tenure that was not cleared up costs the others a TTL. So the end waits for that, but no longer
// than its user does.
func TestAFurtherInterruptEndsTheWaitForABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		t.Run(verb+", acquiring", func(t *testing.T) {
			network := startProxy(t, broker, cutsAt("SET"))
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address(), "polite", verb, "--ttl", "1h", "--timeout", "1h", "press")
			await.Next(network.isCut)
			if code := n.interruptUntilItEnds(); code != 128+int(unix.SIGTERM) || strings.Count(n.log.String(), "level=WARN") != 1 ||
				!strings.Contains(n.log.String(), "may hold the lease until its TTL ends") {
				t.Errorf("exit code %d, want 143, and one warning of what is left", code)
			}
		})
		t.Run(verb+", releasing", func(t *testing.T) {
			network := startProxy(t, broker, cutsAt("VDEL"))
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address(), "polite", verb, "--ttl", "1h", "--timeout", "1h", "press/"+verb)
			n.awaitStart()
			n.signal(unix.SIGTERM)
			await.Next(network.isCut) // the program is gone
			if code := n.interruptUntilItEnds(); code != 0 || !strings.Contains(n.log.String(), "the lease could not be released") {
				t.Errorf("exit code %d, want 0, the code of the program, and a warning", code)
			}
		})
	}
}
