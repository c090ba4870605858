//go:build aix || linux || solaris

package supervise

import "golang.org/x/sys/unix"

const (
	getTermios  = unix.TCGETS
	disabledKey = 0 // in place of a key: there is none
)
