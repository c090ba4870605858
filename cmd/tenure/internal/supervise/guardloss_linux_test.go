package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// What stands unread at the other end of a channel makes a read fail. An io.Reader returns a
// length with that, too.
func TestAChannelWhoseOtherEndHasNotReadFails(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := newChannel(os.NewFile(uintptr(ends[0]), "guard"))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if _, err := ours.Write([]byte("a request")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(ends[1]); err != nil {
		t.Fatal(err)
	}
	if n, err := ours.Read(make([]byte, 1)); n != 0 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read %d bytes: %v; want 0, and an error of the connection", n, err)
	}
}

// takeChannel keeps a copy of the guard's end of its channel, as a process can that may trace it.
func takeChannel(t *testing.T, guard int) {
	t.Helper()
	folder := "/proc/" + strconv.Itoa(guard) + "/fd"
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	process, err := unix.PidfdOpen(guard, 0)
	if err != nil {
		prerequisite.Missing(t, fmt.Sprintf("there is no descriptor of a process: %v", err))
	}
	defer unix.Close(process)
	taken := 0
	for _, entry := range entries {
		target, _ := os.Readlink(filepath.Join(folder, entry.Name()))
		number, err := strconv.Atoi(entry.Name())
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		socket, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			prerequisite.Missing(t, fmt.Sprintf("there is no right to copy the descriptor of another process: %v", err))
		}
		t.Cleanup(func() { _ = unix.Close(socket) })
		taken++
	}
	if taken == 0 {
		t.Fatal("the guard has no socket")
	}
}

// The channel to a guard that was killed does not end while another process has its other end. The
// supervisor waits for the guard alone, and ends what the program left.
func TestAChannelThatDoesNotEndKeepsNoProgramAlive(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "session", verb, "--ttl", "2s", "--grace", "100ms", "press/"+verb)
		n.awaitStart()
		guard := n.guard()
		takeChannel(t, guard)
		if err := unix.Kill(guard, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.awaitGone()
		if verb == "run" {
			awaitLog(t, n, "staying out of the election for a while")
		} else if code := n.awaitExit(); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
	}
}

// A guard that is killed after it took the result of the program, and before it said so, leaves an id
// that another group may have got. Here a process of others is in the group.
func TestAGroupThatOthersGotIsSparedWhereTheGuardTookTheResult(t *testing.T) {
	program := exec.Command("/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil { // so the process is not left to this one
		t.Fatal(err)
	}
	output, err := program.Output()
	if err != nil {
		t.Fatal(err)
	}
	group := program.Process.Pid
	t.Cleanup(func() { _ = unix.Kill(-group, unix.SIGKILL) })
	pid, err := strconv.Atoi(strings.TrimSpace(string(output)))
	if err != nil {
		t.Fatal(err)
	}
	other, ok := readProcess(pid)
	if !ok || other.parent == os.Getpid() {
		t.Fatalf("the process is a child of this one: %+v", other)
	}
	await.Done(func() { killLeft(group, false, func(stuck string) { t.Error(stuck) }) })
	mustLive(t, other)
}
