package supervise

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
)

// Exit codes for a program that could not be started, as shells and env(1) have them.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// StartCode returns the exit code for why a program could not be started.
func StartCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return CodeNotFound
	}
	return CodeNotExecutable
}

// ErrGuard: the guard failed or was killed. The program and, on Linux, all that it started are gone.
var ErrGuard = errors.New("the guard of the program is gone")

// An Interrupt is an error that may be in the cause of the end of Run's context: a signal ended it,
// and the program is stopped with that signal.
type Interrupt interface {
	error
	// Signal returns the signal.
	Signal() os.Signal
}

// A Lease is what Run must know of a tenure; *lease.Tenure is one.
type Lease interface {
	// Remaining returns how long the tenure lasts if it is not renewed any more; zero: it is over.
	Remaining() time.Duration
}

// Options says which program Run runs, and how.
type Options struct {
	// Name is the name of the lease, for messages.
	Name string
	// Path is the file of the program; Args are its arguments, beginning with its name.
	Path string
	Args []string
	// Env is the environment of the program.
	Env []string
	// TTL is the TTL of the lease.
	TTL time.Duration
	// Grace is how long the program has from SIGTERM to SIGKILL.
	Grace time.Duration
	// After is a command line for Shell that runs when the program is gone, before the lease can pass; empty: none.
	// It has Grace too, and the environment of the program. Its failure is logged.
	After string
	// Watchdog is fed until the program and After are gone, and closed then. nil: there is none.
	Watchdog *watchdog.Dog
	// Instant kills the program at once when its supervisor is gone: the broker releases the lease
	// at that moment.
	Instant bool
	// Connection returns the connection whose end releases the lease; nil for none. The guard keeps
	// it open until the program is gone, and never reads it. So a broker that releases the lease
	// when the connection ends does so after that, however the supervisor ends. If the broker
	// itself ends the connection, the guard kills the program at once.
	Connection func() (syscall.RawConn, error)
	// Signals has signals to pass on to the program. A signal for which IsEnd is true kills
	// it; the first one of these ends Run's context instead. nil: none.
	Signals <-chan os.Signal
	// Logger gets what goes wrong with guards, and what cannot be killed.
	Logger *slog.Logger
}

// Margin is how long before the end of a tenure of this TTL the program is killed, at the latest:
// time for the kill itself, and for a guard that waits for a processor.
func Margin(ttl time.Duration) time.Duration { return max(ttl/20, 50*time.Millisecond) }

// Status is how a program ended.
type Status struct {
	// Code is the exit status of the program; -1 if a signal ended it.
	Code int
	// Signal is the number of the signal that ended the program; 0 if none did.
	Signal int
	// Stopped says that the program was told to end, or killed, by its guard or its supervisor.
	Stopped bool
	// ByKey says that the terminal's key for SIGINT has ended the program, as far as can be seen:
	// SIGINT ended it, the key reached its group alone, and this process sent it none.
	ByKey bool `json:"-"`
}

// ExitCode returns the code that a shell shows for the status: the program's, or 128 and the
// number of the signal that ended it.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + s.Signal
	}
	return s.Code
}

// NeverStarted reports whether there was no program: Run was stopped before.
func (s Status) NeverStarted() bool { return s == Status{Code: -1, Stopped: true} }

// String is "exit status 3" or "signal 15 (terminated)".
func (s Status) String() string {
	switch {
	case s.NeverStarted():
		return "never started"
	case s.Signal != 0:
		return fmt.Sprintf("signal %d (%v)", s.Signal, syscall.Signal(s.Signal))
	}
	return fmt.Sprintf("exit status %d", s.Code)
}
