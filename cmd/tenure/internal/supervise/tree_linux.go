package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// executable is this program, even after an upgrade has replaced its file.
func executable() string {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// becomeSubreaper makes descendants whose parents ended children of this process.
func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // Linux 3.4 and later

// children returns the children of this process.
func children() (pids []int) {
	own := os.Getpid()
	alive, zombies, _ := descendants(own, nil)
	for _, r := range alive {
		if r.parent == own {
			pids = append(pids, r.pid)
		}
	}
	return append(pids, zombies...)
}

func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}

// relative is a process, as /proc has it.
type relative struct {
	pid, parent, group int
	state              byte
	started            string // with the pid, it tells a process from a later one of the same pid
	name               string
}

// readProcess reads /proc/PID/stat.
func readProcess(pid int) (r relative, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return r, false
	}
	// The name is in parentheses, and may have any characters.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return r, false
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 20 {
		return r, false
	}
	r = relative{pid: pid, state: fields[0][0], started: string(fields[19]), name: string(text[open+1 : end])}
	r.parent, _ = strconv.Atoi(string(fields[1]))
	r.group, _ = strconv.Atoi(string(fields[2]))
	return r, true
}

// descendants returns the processes that descend from a process, without zombies and without
// those of spared ids and what descends from them. zombies are its own children that ended.
func descendants(of int, spared map[int]bool) (alive []relative, zombies []int, err error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	children := make(map[int][]relative)
	for _, entry := range names {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if r, ok := readProcess(pid); ok && !spared[pid] {
			children[r.parent] = append(children[r.parent], r)
		}
	}
	for next := []int{of}; len(next) > 0; next = next[1:] {
		for _, child := range children[next[0]] {
			next = append(next, child.pid)
			switch {
			case child.state != 'Z' && child.state != 'X':
				alive = append(alive, child)
			case child.parent == of:
				zombies = append(zombies, child.pid)
			}
		}
		delete(children, next[0])
	}
	return alive, zombies, nil
}

// signalDescendants sends a signal to all processes that descend from this one. It signals groups
// whose first process is one of them at once, so that none of their members can fork meanwhile.
// It returns what could not be signalled, and why. spared may be nil.
func signalDescendants(of, group int, s unix.Signal, spared map[int]bool) (stuck string) {
	alive, _, err := descendants(of, spared)
	if err != nil && group != 0 { // there is no /proc: the group is all that is known
		_ = unix.Kill(-group, s)
	}
	known := map[int]bool{group: true}
	for _, r := range alive {
		known[r.pid] = true
	}
	own, _ := unix.Getpgid(0)
	done := map[int]bool{own: true, 0: true}
	for _, r := range alive {
		if !done[r.group] && known[r.group] {
			done[r.group] = true
			_ = unix.Kill(-r.group, s)
		}
	}
	for _, r := range alive {
		if known[r.group] && r.group != own && s != unix.SIGKILL {
			continue // the signal came with the group
		}
		if err := signalProcess(r, s); err != nil && stuck == "" {
			stuck = fmt.Sprintf("process %d (%s): %v", r.pid, r.name, err)
		}
	}
	return stuck
}

// signalProcess signals exactly the process that was seen, and no later one with its pid.
func signalProcess(r relative, s unix.Signal) error {
	process, err := os.FindProcess(r.pid) // a pidfd, where the kernel has them
	if err != nil {
		return nil
	}
	defer process.Release()
	if seen, ok := readProcess(r.pid); !ok || seen.started != r.started {
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

// reapLeft takes the results of children that this process did not start, and reports whether no
// descendant is left, but for those that are spared.
func reapLeft(_ int, spared map[int]bool) (over bool) {
	alive, zombies, _ := descendants(os.Getpid(), spared)
	for _, pid := range zombies {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
	return len(alive) == 0
}
