//go:build unix && !linux

package supervise

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pollPeerClosed is for Linux: elsewhere a poll tells only that both directions are closed.
const pollPeerClosed = 0

func executable() (string, error) { return os.Executable() }

// becomeSubreaper does nothing: only Linux gives orphans to an ancestor.
func becomeSubreaper() {}

// checkTree returns nil: processes are found by their group.
func checkTree() error { return nil }

// children, childHasEnded and takeResult are for systems with subreapers.
func children() []int     { return nil }
func childHasEnded() bool { return false }
func takeResult(int) bool { return false }

// resultTaken returns false: the program is left to no ancestor, so it cannot be known here. So
// another group is meant if it has got the same id.
func resultTaken(int) bool { return false }

// waitFor is Wait of a command, and calls ended after it: no portable call leaves the result. So
// another group is meant if it has got the same id in between.
func waitFor(cmd *exec.Cmd, ended func()) error {
	defer ended()
	return cmd.Wait()
}

// endReading bounds the time in which what the guard, which has ended, has written is read. To shut
// the channel down would lose that here.
func (s *channel) endReading() { _ = s.SetReadDeadline(time.Now().Add(time.Second)) }

// Lock makes this process the one of its user and machine that works under a lease, until it is closed or the
// process ends.
func Lock(name string) (io.Closer, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("tenure-%d-%x", os.Getuid(), sha256.Sum256([]byte(name))))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalDescendants signals the process group of the child. What has left it is not found.
func signalDescendants(group int, _ bool, s unix.Signal, _ map[int]bool) (stuck string) {
	if group == 0 {
		return ""
	}
	if err := unix.Kill(-group, s); errors.Is(err, unix.EPERM) && groupExists(group) {
		return "the process group of the program: " + err.Error()
	}
	return ""
}

// groupExists reports whether any process is in the group.
func groupExists(group int) bool { return !errors.Is(unix.Kill(-group, 0), unix.ESRCH) }

// reapLeft reports whether the group is gone. Its processes are not children of this one.
func reapLeft(group int, _ map[int]bool) (over bool) { return group == 0 || !groupExists(group) }
