package terminal

import (
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// readable reports whether the console has input. It waits for that.
func readable(in *os.File, wait time.Duration) (bool, error) {
	event, err := windows.WaitForSingleObject(windows.Handle(in.Fd()), uint32(wait.Milliseconds()))
	return event == windows.WAIT_OBJECT_0, err
}
