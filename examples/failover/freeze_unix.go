//go:build unix

package main

import "syscall"

// canFreeze says whether this system can stop a process and let it go on.
const canFreeze = true

var inItsOwnGroup = &syscall.SysProcAttr{Setpgid: true}

// freeze stops the process, which does not notice.
func (p *process) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// wake lets a frozen process go on.
func (p *process) wake() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
