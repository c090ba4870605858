package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

// The exit codes of all commands. Those from exitHeld on are above sysexits.h (64 to 78) and below
// what shells use (126 on), because run and lock end with the code of their child.
const (
	exitFailure     = 1   // a failure that no other code names
	exitUsage       = 2   // the command line, a variable, a file of settings, or what one of them names is wrong
	exitHeld        = 100 // the lease is held by another
	exitTimeout     = 101 // the wait timed out
	exitLost        = 102 // the lease was lost while the child ran, or before it started
	exitUnreachable = 103 // no broker or no store answered
	exitRefused     = 104 // the broker or the store refused
	exitMissing     = 105 // the key does not exist, or its condition was not met
	exitSignal      = 128
	exitInterrupt   = exitSignal + int(syscall.SIGINT)
)

const exitHelp = `All commands end with one of these codes:

    0  success
    1  another failure
    2  bad usage: a flag, a variable, the file of --config, or what one of them names
  100  the lease is held by another (lock --wait 0, switchover --to)
  101  the wait timed out (--wait)
  102  the lease was lost while the child ran, or before it started
  103  no broker or store answered; the message says whether a request may have been applied
  104  refused: the credentials, the rights, a fencing token, a quota
  105  no such key or holder, or a condition was not met
  126  the command of run or lock cannot be executed; 127: it was not found
128+n  signal n ended the command; otherwise run and lock have the code of their child`

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.error }

// exitWith returns an error with which the process exits with code, after printing err. nil: there is nothing
// to say.
func exitWith(code int, err error) error { return &exitError{code, cmp.Or(err, errors.New(""))} }

// Usage marks err as a mistake of the caller, such as flags that contradict each other.
func Usage(err error) error { return exitWith(exitUsage, err) }

// usagef is Usage for an error of its own.
func usagef(format string, arguments ...any) error { return Usage(fmt.Errorf(format, arguments...)) }

// interruptedError says that a signal ended a command: the cause of a context, or the end of the child of run
// or lock.
type interruptedError struct {
	signal syscall.Signal
	child  bool // it ended the child, and there is nothing to print
	byKey  bool // the child alone got SIGINT, from the key of the terminal
}

// Error names the signal.
func (e *interruptedError) Error() string {
	if e.child {
		return ""
	}
	return e.signal.String()
}

// Signal returns the signal, for package supervise.
func (e *interruptedError) Signal() os.Signal { return e.signal }

// Is matches context.Canceled, as the error of the context does.
func (e *interruptedError) Is(target error) bool { return target == context.Canceled }

// afterSignal returns err with the signal that ended ctx, if one did. The end of a child has its own code.
func afterSignal(ctx context.Context, err error) error {
	var exit *exitError
	var interrupted *interruptedError
	if errors.As(err, &exit) || errors.As(err, &interrupted) || !errors.As(context.Cause(ctx), &interrupted) {
		return err
	}
	return fmt.Errorf("%w (%w)", interrupted, err)
}

// timeoutError is the cause of the end of a wait that a flag bounds.
type timeoutError struct {
	flag  string
	limit time.Duration
}

// Error names the flag.
func (e *timeoutError) Error() string { return fmt.Sprintf("gave up after --%s %v", e.flag, e.limit) }

// Is matches context.DeadlineExceeded, as the error of the context does.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// within returns a context that ends after the time of a flag, with a *timeoutError as its cause.
func within(ctx context.Context, flag string, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &timeoutError{flag, limit})
}

// exitCode returns the code with which a process ends after err.
func exitCode(err error) int {
	var exit *exitError
	var interrupted *interruptedError
	var connect *transport.ConnectionError
	var waited *timeoutError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &interrupted):
		return exitSignal + int(interrupted.signal)
	case errors.Is(err, journal.ErrNoData):
		return exitUsage
	case errors.Is(err, transport.ErrConditionFailed), errors.Is(err, election.ErrNoLeader):
		return exitMissing
	case errors.Is(err, election.ErrOtherLeads):
		return exitHeld
	case errors.Is(err, transport.ErrServerBusy):
		return exitUnreachable // it may answer later
	case errors.As(err, &connect) && !connect.Ended && slices.Contains(refusals, connect.Code),
		errors.Is(err, transport.ErrNotAuthorized), errors.Is(err, transport.ErrQuotaExceeded),
		errors.As(err, new(*transport.RefusedError)), errors.As(err, new(*transport.RejectedError)):
		return exitRefused
	case errors.As(err, &connect), errors.Is(err, transport.ErrNoStore), errors.Is(err, transport.ErrNotSent),
		errors.Is(err, transport.ErrOutcomeUnknown):
		return exitUnreachable
	case errors.As(err, &waited) && waited.flag == "wait":
		return exitTimeout
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	}
	return exitFailure
}

// refusals are the reason codes of CONNACK [MQTT-3.2.2.2] that are about which client connects, rather than
// about the broker.
var refusals = []byte{
	packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized,
	packets.ConnackBanned, packets.ConnackBadAuthenticationMethod,
}
