//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package fencing

import (
	"errors"
	"fmt"
	"io"
	"runtime"
)

func lockFile(string) (io.Closer, error) {
	return nil, fmt.Errorf("%w: this package cannot lock files on %s; keep the token elsewhere, with a persist function "+
		"of your own", errors.ErrUnsupported, runtime.GOOS)
}
