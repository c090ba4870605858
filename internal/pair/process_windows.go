package pair

import (
	"errors"
	"syscall"
)

// CanFreeze is false: Windows has no signal that stops a process.
const CanFreeze = false

var inItsOwnGroup = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}

// Freeze returns errors.ErrUnsupported.
func (*Process) Freeze() error { return errors.ErrUnsupported }

// Wake does nothing: the process was never frozen.
func (*Process) Wake() error { return nil }
