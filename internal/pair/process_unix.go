//go:build unix

package pair

import "syscall"

// CanFreeze says whether this system can stop a process and let it go on.
const CanFreeze = true

var inItsOwnGroup = &syscall.SysProcAttr{Setpgid: true}

// Freeze stops the process, which does not notice.
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Wake lets a frozen process go on.
func (p *Process) Wake() error { return p.Signal(syscall.SIGCONT) }
