//go:build !linux

package watchdog

import (
	"errors"
	"os"
)

var setTimeout = func(*os.File, int) (int, error) {
	return 0, errors.New("only Linux has such devices: leave out --watchdog")
}
