package main

import (
	"errors"
	"syscall"
)

// canFreeze is false: Windows has no signal that stops a process.
const canFreeze = false

var inItsOwnGroup = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}

// freeze returns errors.ErrUnsupported.
func (*process) freeze() error { return errors.ErrUnsupported }

// wake does nothing: the process was never frozen.
func (*process) wake() error { return nil }
