//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package supervise

import "golang.org/x/sys/unix"

const (
	getTermios  = unix.TIOCGETA
	disabledKey = 0xff // in place of a key: there is none
)
