package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/eclipse/paho.golang/packets"
	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/transport"
)

// The exit codes of all commands. Those from exitHeld on are above what programs and shells
// commonly use, because run and lock end with the code of their child.
const (
	exitFailure     = 1  // a failure that no other code names
	exitUsage       = 2  // the command line, a variable, the configuration file, or a file or directory that one of them names is wrong
	exitHeld        = 64 // the lease is held by another
	exitTimeout     = 65 // the wait timed out
	exitLost        = 66 // the lease was lost while the child ran, or before it started
	exitUnreachable = 67 // no broker or no store answered
	exitRefused     = 68 // the broker or the store refused
	exitMissing     = 69 // the key does not exist, or its condition was not met
	exitSignal      = 128
	exitInterrupt   = exitSignal + int(syscall.SIGINT)
)

const exitHelp = `All commands end with one of these codes:

    0  success
    1  a failure that no other code names
    2  bad usage: the command line, a TENURE_ variable, the file of --config, a
       file that a flag names and that cannot be read, or data that is not where
       an argument says
   64  the lease is held by another (lock --wait 0; switchover --to)
   65  the wait timed out (lock --wait, switchover --wait)
   66  the lease was lost while the child ran, or before it started (run, lock)
   67  no broker or no store could be reached, or none answered in time; after
       set, del, vdel and release the message says whether the request may
       have been applied
   68  refused: the credentials, the rights, a fencing token or a quota; the
       leader (switchover)
   69  the key does not exist, the lease has no holder, or the condition of
       set or vdel was not met
  126  the command of run or lock cannot be executed
  127  the command of run or lock was not found
128+n  signal n ended the command before it was done, such as 130 after Ctrl-C

Otherwise run and lock end with the code of their child; a child that signal n
ended counts as 128+n.`

// exitCodesTopic is "tenure help exit-codes".
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit code of a command says", Long: exitHelp}
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error // nil: there is nothing to print
}

// exitWith returns an error with which the process exits with code, after printing err. With nil
// it prints nothing: the child of run or lock has said what there was to say.
func exitWith(code int, err error) error { return &exitError{code: code, err: err} }

// usage marks err as a mistake of the caller, such as flags that contradict each other. nil stays
// nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitUsage, err: err}
}

// Usage is usage for the further commands of a Program.
func Usage(err error) error { return usage(err) }

// Error returns the text of the cause.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// childInterrupted says that SIGINT ended the child of run or lock. There is nothing to print.
type childInterrupted struct {
	byKey bool // the child alone got SIGINT, from the key of the terminal
}

// Error returns nothing.
func (*childInterrupted) Error() string { return "" }

// interruptedError is the cause of a context that a signal ended.
type interruptedError struct{ signal os.Signal }

// Error says what the signal did.
func (e *interruptedError) Error() string {
	if e.signal == os.Interrupt {
		return "interrupted"
	}
	return e.signal.String()
}

// Signal returns the signal, for package supervise.
func (e *interruptedError) Signal() os.Signal { return e.signal }

// Is matches context.Canceled, as the error of the context does.
func (e *interruptedError) Is(target error) bool { return target == context.Canceled }

// code returns the exit code after this signal.
func (e *interruptedError) code() int {
	if number, ok := e.signal.(syscall.Signal); ok {
		return exitSignal + int(number)
	}
	return exitFailure
}

// exitCode returns the code with which a process ends after err.
func exitCode(err error) int {
	var exit *exitError
	var child *childInterrupted
	var interrupted *interruptedError
	var connect *transport.ConnectionError
	var refused *transport.RefusedError
	var rejected *transport.RejectedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &child):
		return exitInterrupt
	case errors.As(err, &interrupted):
		return interrupted.code()
	case errors.Is(err, transport.ErrConditionFailed):
		return exitMissing
	case errors.Is(err, transport.ErrServerBusy):
		return exitUnreachable // it may answer later
	case errors.As(err, &connect) && !connect.Ended && isCredentialsRefusal(connect.Code):
		return exitRefused
	case errors.Is(err, transport.ErrNotAuthorized), errors.Is(err, transport.ErrQuotaExceeded),
		errors.As(err, &refused), errors.As(err, &rejected):
		return exitRefused
	case errors.As(err, &connect), errors.Is(err, transport.ErrNoStore), errors.Is(err, transport.ErrNotSent),
		errors.Is(err, transport.ErrOutcomeUnknown):
		return exitUnreachable
	}
	return exitFailure
}

// isCredentialsRefusal reports whether a reason code of CONNACK [MQTT-3.2.2.2] is about which client
// connects, rather than about the broker.
func isCredentialsRefusal(code byte) bool {
	switch code {
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized, packets.ConnackBanned, packets.ConnackBadAuthenticationMethod:
		return true
	}
	return false
}

// signalCause returns why ctx ended, if a signal ended it; else err.
func signalCause(ctx context.Context, err error) error {
	var interrupted *interruptedError
	if errors.As(context.Cause(ctx), &interrupted) && !errors.As(err, &interrupted) {
		return fmt.Errorf("%w (%w)", interrupted, err)
	}
	return err
}
