package main

import (
	"errors"
	"syscall"
)

// canFreeze is false: Windows has no signal that stops a process.
const canFreeze = false

var inItsOwnGroup = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}

func (*process) freeze() error { return errors.ErrUnsupported }

func (*process) wake() error { return nil } // it was never frozen
