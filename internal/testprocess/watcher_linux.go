package testprocess

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// mark is the environment variable that says of which test process a process is a descendant.
const mark = "TESTPROCESS_MARK"

// watcher starts a shell that waits for the end of its standard input, and then kills the processes that have $0 in
// their environment, until three looks in succession find none: a process may fork meanwhile. It is no child of
// the test process: tests may wait for all their children. A process whose first thread has ended shows its
// environment at another thread.
const watcher = `exec 3<&0 # a shell takes the standard input from what runs beside it
(
	trap '' INT HUP TERM
	cat >/dev/null
	none=0 looks=0
	while [ $none -lt 3 ] && [ $looks -lt 300 ]; do
		none=$((none + 1)) looks=$((looks + 1))
		for path in $(grep -lzxF "$0" /proc/[0-9]*/task/[0-9]*/environ); do
			pid=${path#/proc/}
			kill -9 ${pid%%/*}
			none=0
		done
		sleep 0.02
	done
) <&3 >/dev/null 2>&1 &`

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
	cmd := exec.Command("/bin/sh", "-c", watcher, mark+"="+value)
	cmd.Stdin, cmd.Dir, cmd.SysProcAttr = alive, "/", &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		_ = end.Close()
		return nil, err
	}
	return end, os.Setenv(mark, value)
}
