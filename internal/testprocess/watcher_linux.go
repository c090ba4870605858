package testprocess

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// mark is the environment variable that says of which test process a process is a descendant.
	mark = "TESTPROCESS_MARK"
	// starter and watcher are the first argument of a process that starts a watcher, and of a watcher. The
	// second is the mark, with its value.
	starter, watcher = "start-test-watcher", "watch-test-process"

	patience = 10 * time.Second // the longest time in which the watcher kills
	looks    = 3                // in succession that must find nothing: a process may fork meanwhile
	pause    = 20 * time.Millisecond
)

// The watcher is the test binary, and begins before a TestMain that may take it for another child. It is no
// child of the test process: tests may wait for all their children.
func init() {
	if len(os.Args) != 3 {
		return
	}
	switch os.Args[1] {
	case starter:
		if err := detached(watcher, os.Args[2], os.Stdin).Start(); err != nil {
			panic(err)
		}
		os.Exit(0)
	case watcher:
		watch(os.Args[2])
		os.Exit(0)
	}
}

// detached is a command that runs this test binary in a session of its own.
func detached(argument, marked string, alive *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", argument, marked)
	cmd.Stdin, cmd.Dir, cmd.SysProcAttr = alive, "/", &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// watched starts the watcher, unless there is one. It returns the end of a pipe whose other end the watcher
// reads. Only the test process has it, so the watcher also comes to its end when the test process is gone.
func watched() (end *os.File, err error) {
	if os.Getenv(mark) != "" {
		return nil, nil
	}
	value := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	alive, end, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer alive.Close()
	if err := detached(starter, mark+"="+value, alive).Run(); err != nil {
		_ = end.Close()
		return nil, err
	}
	return end, os.Setenv(mark, value)
}

// watch waits until the test process is gone, and kills what it has left.
func watch(marked string) {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, os.Stdin)
	end := time.Now().Add(patience)
	for none := 0; none < looks && time.Now().Before(end); time.Sleep(pause) {
		none++
		if kill(marked) {
			none = 0
		}
	}
}

// kill kills the processes that have the mark, and reports whether there were any.
func kill(marked string) (found bool) {
	// A process whose first thread has ended shows its environment at another thread.
	environments, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/environ")
	for _, path := range environments {
		environment, _ := os.ReadFile(path) // empty where a process ended, or is another user's
		for variable := range bytes.SplitSeq(environment, []byte{0}) {
			if string(variable) != marked {
				continue
			}
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			_ = syscall.Kill(pid, syscall.SIGKILL)
			found = true
		}
	}
	return found
}
