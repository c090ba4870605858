package supervise

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollPeerClosed is what a poll says of a connection that its peer has closed, though data of it
// may wait.
const pollPeerClosed = unix.POLLRDHUP

// executable is this program, even after an upgrade has replaced its file.
func executable() (string, error) { return "/proc/self/exe", nil }

// becomeSubreaper makes descendants whose parents ended children of this process.
func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // Linux 3.4 and later

// checkTree returns why the descendants of this process cannot be found, and the cure.
func checkTree() error {
	status, err := os.ReadFile("/proc/self/status")
	has := func(line string) bool { return bytes.Contains(status, []byte("\n"+line)) }
	pid := fmt.Sprintf(":\t%d\n", os.Getpid())
	// NSpid has the id of this process in each namespace, from the one of /proc down to its own.
	// Linux before 4.1, or without namespaces, has only Pid.
	if err == nil && has("Pid"+pid) && (has("NSpid"+pid) || !has("NSpid")) {
		return nil
	}
	return errors.New("/proc, in which tenure finds what a program leaves behind, does not belong to this PID " +
		`namespace; mount its own: "mount -t proc proc /proc", or "unshare --mount-proc"`)
}

// children returns the children of this process.
func children() (pids []int) {
	parent := os.Getpid()
	entries, _ := descendants(parent, nil)
	for _, e := range entries {
		if e.parent == parent {
			pids = append(pids, e.pid)
		}
	}
	return pids
}

// childHasEnded reports whether the result of any child waits to be taken.
func childHasEnded() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// takeResult takes the result of a child, if it has ended.
func takeResult(pid int) (taken bool) {
	got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil && got == pid
}

// resultTaken reports whether the guard, which has ended, took the result of the program. Else the program
// was left to this process, alive or not.
func resultTaken(pid int) bool {
	return errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD)
}

// waitFor is Wait of a command. It calls ended once the command has ended, and before its result is
// taken: until then no other process or group has its id.
func waitFor(cmd *exec.Cmd, ended func()) error {
	for errors.Is(unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	ended()
	return cmd.Wait()
}

// endReading lets a read return what the guard, which has ended, has written, and then the end.
func (s *channel) endReading() { _ = s.CloseRead() }

// Lock makes this process the one of its user and machine that works under a lease, until it is closed or the
// process ends.
func Lock(name string) (io.Closer, error) {
	return net.Listen("unix", fmt.Sprintf("@tenure-%d-%x", os.Getuid(), sha256.Sum256([]byte(name))))
}

func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}

// procEntry is a process, as /proc has it.
type procEntry struct {
	pid, parent, group int
	state              byte
	threads            int    // with the first one, even if that has ended
	started            string // with the pid, it tells a process from a later one of the same pid
	name               string
}

// isZombie reports whether all threads of the process have ended, so that it only waits for its
// parent to take its result. The kernel shows the state of the first thread: a process whose first
// thread has ended alone, as by pthread_exit, goes on, and has the state of a zombie.
func (e procEntry) isZombie() bool { return (e.state == 'Z' || e.state == 'X') && e.threads <= 1 }

// readProcess reads /proc/PID/stat.
func readProcess(pid int) (e procEntry, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return e, false
	}
	// The name is in parentheses, and may have any characters.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return e, false
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 20 {
		return e, false
	}
	e = procEntry{pid: pid, state: fields[0][0], started: string(fields[19]), name: string(text[open+1 : end])}
	e.parent, _ = strconv.Atoi(string(fields[1]))
	e.group, _ = strconv.Atoi(string(fields[2]))
	e.threads, _ = strconv.Atoi(string(fields[17]))
	return e, true
}

// descendants returns the processes that descend from a process, zombies too, without
// processes of spared ids and what descends from them.
func descendants(of int, spared map[int]bool) (entries []procEntry, err error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]procEntry)
	for _, entry := range names {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if e, ok := readProcess(pid); ok && !spared[pid] {
			children[e.parent] = append(children[e.parent], e)
		}
	}
	for next := []int{of}; len(next) > 0; next = next[1:] {
		for _, child := range children[next[0]] {
			next = append(next, child.pid)
			entries = append(entries, child)
		}
		delete(children, next[0])
	}
	return entries, nil
}

// signalDescendants sends a signal to all processes that descend from this one. It signals groups
// whose first process is one of them at once, so that none of their members can fork meanwhile.
// group is the program's; 0 for none. reaped says that the program's result was taken: another
// process may have its id then, so its group is signalled only if a descendant is in it. It returns
// what could not be signalled, and why. spared may be nil.
func signalDescendants(group int, reaped bool, s unix.Signal, spared map[int]bool) (stuck string) {
	self, _ := unix.Getpgid(0)
	done := map[int]bool{self: true, 0: true}
	if group != 0 && !reaped { // whatever /proc shows
		done[group] = true
		_ = unix.Kill(-group, s)
	}
	entries, err := descendants(os.Getpid(), spared)
	if err != nil {
		return "what the program has left: " + err.Error()
	}
	leaders := map[int]bool{group: true}
	for _, e := range entries {
		leaders[e.pid] = true
	}
	for _, e := range entries {
		if !done[e.group] && leaders[e.group] {
			done[e.group] = true
			_ = unix.Kill(-e.group, s)
		}
	}
	for _, e := range entries {
		if leaders[e.group] && e.group != self && s != unix.SIGKILL {
			continue // the signal came with the group
		}
		// A zombie is signalled, too: that has no effect, unless a thread of it lives after all.
		if err := signalProcess(e, s); err != nil && stuck == "" && !e.isZombie() {
			stuck = fmt.Sprintf("process %d (%s): %v", e.pid, e.name, err)
		}
	}
	return stuck
}

// signalProcess signals exactly the process that was seen, and no later one with its pid.
func signalProcess(e procEntry, s unix.Signal) error {
	process, err := os.FindProcess(e.pid) // a pidfd, where the kernel has them
	if err != nil {
		return nil
	}
	defer process.Release()
	if seen, ok := readProcess(e.pid); !ok || seen.started != e.started {
		return nil
	}
	err = process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// groupExists is for systems without subreapers: here a guard without children has no descendants.
func groupExists(int) bool { return false }

// reapLeft takes the results of children that this process did not start, and reports whether it saw no
// descendant, but for those that are spared. One that has ended counts too: it may have forked since the look
// began.
func reapLeft(_ int, spared map[int]bool) (over bool) {
	entries, err := descendants(os.Getpid(), spared)
	for _, e := range entries {
		takeResult(e.pid)
	}
	return err == nil && len(entries) == 0
}
