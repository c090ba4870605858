//go:build unix

package main

import (
	"fmt"
	"syscall"
)

// canFreeze says whether this system can stop a process and let it go on.
const canFreeze = true

var inItsOwnGroup = &syscall.SysProcAttr{Setpgid: true}

// freeze stops the node, which does not notice.
func (p *process) freeze() error { return p.signal(syscall.SIGSTOP) }

// wake lets a frozen node go on.
func (p *process) wake() error { return p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%v %s: %w", s, p.name, err)
	}
	return nil
}
