//go:build !linux

package peer

import (
	"os"
	"syscall"
)

// ownLife has no setting that all systems have.
var ownLife *syscall.SysProcAttr

// interrupt kills, because not every system has a signal that asks.
func interrupt(process *os.Process) error { return process.Kill() }
