package supervise

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
)

// The guard holds the connection open, so that the broker cannot release the lease before the
// program is gone, however late the guard is.
func TestWithInstantTheLeaseIsNotReleasedBeforeALateGuardHasActed(t *testing.T) {
	t.Parallel()
	broker := server(t)
	lock := filepath.Join(t.TempDir(), "lock")
	active := startNode(t, lock, broker, "daemon", "run", "--instant", "--ttl", "5s", "press")
	active.awaitStart()
	standby := startNode(t, lock, broker, "polite", "run", "--instant", "--ttl", "5s", "press")
	awaitLog(t, standby, "standing by")
	guard := active.guard()
	if err := unix.Kill(guard, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	active.signal(unix.SIGKILL)
	time.Sleep(300 * time.Millisecond) // how late the guard is
	if err := unix.Kill(guard, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	active.awaitGone()
	standby.awaitStart() // it fails the test if the lock of the file was taken
}

// A connection that is dead and says nothing is replaced, though the guard has it, too; and an
// interrupt ends tenure meanwhile.
func TestWithInstantADeadConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	broker := server(t)
	network := startProxy(t, broker, nil)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address(), "polite", "run", "--instant", "--ttl", "2s", "press")
	n.awaitStart()
	network.awaitTraffic(6) // renewals: a read that waits now began after the guard got the connection
	network.freeze()
	n.awaitGone()
	awaitLogs(t, n, "the child starts", 2)
	network.awaitTraffic(6)
	network.freeze()
	n.signal(unix.SIGTERM)
	n.awaitExit()
}

// A second process with the client id of a holder ends its connection, so the broker releases the
// lease, though the holder's process is stopped. Its guard sees the end.
func TestWithInstantTheGuardSeesThatTheClientIDWasTakenOver(t *testing.T) {
	t.Parallel()
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "daemon", "run", "--instant", "--client-id", "node", "--ttl", "5m", "press")
	n.awaitStart()
	n.signal(unix.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	other, err := transport.Dial(ctx, broker, transport.Options{ClientID: "node"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n.awaitGone() // long before the guard would act on the deadline
}
