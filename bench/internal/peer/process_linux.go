package peer

import (
	"os"
	"syscall"
)

// ownLife keeps an interrupt of the terminal from the servers: the suite ends them itself, after
// their clients. The kernel ends them if the suite is killed.
var ownLife = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

func interrupt(process *os.Process) error { return process.Signal(syscall.SIGTERM) }
