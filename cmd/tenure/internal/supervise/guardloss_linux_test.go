package supervise

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
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
