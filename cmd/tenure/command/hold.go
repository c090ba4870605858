package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/cmd/tenure/internal/systemd"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// childHelp is for the help of run and lock.
const childHelp = `The child has a process group of its own. When it must end, the group gets
SIGTERM, and after --grace SIGKILL, while the lease still stands; so the child has
ended before another one starts. If the lease is lost at once, or with --instant the
connection, the child is killed at once. The child also ends if this process is
killed or stopped. docs/run.md says what cannot be guaranteed, and what becomes of
each signal.

The child has these variables:

  TENURE_NAME      the name of the lease
  TENURE_TOKEN     the fencing token, for --fence of set
  TENURE_HOLDER    the name of the holder
  TENURE_DEADLINE  when the lease would end if it were not renewed any more, as
                   known when the child starts, by the clock of this machine
                   (RFC 3339, UTC, with nanoseconds). Renewals move it.`

// defaultGrace is the default of --grace, as a share of --ttl.
const defaultGrace = 10

// holdFlags are the flags that run and lock share: a lease, and a child while it is held.
type holdFlags struct {
	connection connection
	ttl, grace time.Duration
	holder     string
	instant    bool
	wait       time.Duration // for the broker and the lease together; 0: the broker has --timeout
}

func (h *holdFlags) register(flags *pflag.FlagSet) {
	h.connection.register(flags)
	flags.DurationVar(&h.ttl, "ttl", 10*time.Second, "how long the store keeps the lease after the last renewal: how long others wait after a crash")
	flags.DurationVar(&h.grace, "grace", 0, "how long the child has from SIGTERM to SIGKILL; default: a tenth of --ttl")
	flags.StringVar(&h.holder, "holder", "", "name of the holder that others see, such as an address; default: the client id")
	flags.BoolVar(&h.instant, "instant", false, "let the broker release the lease the moment the connection is lost; the child is killed then")
}

// leaseOptions returns the options of the lease, or which flags do not fit.
func (h *holdFlags) leaseOptions(logger *slog.Logger) (lease.Options, error) {
	switch {
	case h.ttl <= 0:
		return lease.Options{}, usage(fmt.Errorf("--ttl %v is not positive", h.ttl))
	case h.grace < 0:
		return lease.Options{}, usage(fmt.Errorf("--grace %v is negative", h.grace))
	}
	if err := (lease.Options{TTL: h.ttl}).Validate(); err != nil {
		return lease.Options{}, err
	}
	h.grace = cmp.Or(h.grace, h.ttl/defaultGrace)
	// The child gets SIGTERM when the tenure's context ends, and SIGKILL a margin before its deadline at the latest.
	period := h.grace + supervise.Margin(h.ttl)
	if (lease.Options{TTL: h.ttl, GracePeriod: period}).Validate() != nil {
		return lease.Options{}, usage(fmt.Errorf("--ttl %v cannot carry --grace %v: a renewal without an answer must leave time for another one, then for --grace, and then %v for the kill; "+
			"make --ttl longer, four times --grace and at least 500ms, or --grace shorter", h.ttl, h.grace, supervise.Margin(h.ttl)))
	}
	return lease.Options{
		TTL:             h.ttl,
		GracePeriod:     period,
		Holder:          h.holder,
		InstantFailover: h.instant,
		Logger:          logger,
	}, nil
}

// holderProcess is what a run or lock does with its child.
type holderProcess struct {
	*holdFlags
	name     string
	path     string // of the program
	args     []string
	logger   *slog.Logger
	client   *transport.Client
	signals  chan os.Signal // to pass on
	hasChild atomic.Bool
	ended    atomic.Pointer[time.Time] // when the child ended by itself, which ends the work; nil before
	givenUp  context.Context           // ends with a further signal to end, when there is no child
	manager  *systemd.Manager
	socket   latestSocket // with --instant
}

// latestSocket is the TCP connection to the broker.
type latestSocket struct {
	mu   sync.Mutex
	conn net.Conn
}

// dial is a Dialer of package transport.
func (l *latestSocket) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conn = conn
	}
	return conn, err
}

// raw returns the connection for package supervise.
func (l *latestSocket) raw() (syscall.RawConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, ok := l.conn.(syscall.Conn)
	if !ok {
		return nil, errors.New("the connection is no socket")
	}
	return conn.SyscallConn()
}

// keepAlive returns the shortest keep-alive with which --instant is safe: a broker takes a connection
// for lost after one and a half of it, and must not release a lease in which its holder still believes.
func (h *holdFlags) keepAlive() (time.Duration, error) {
	whole := (h.ttl + time.Second - 1) / time.Second
	needed := (whole*2 + 2) / 3 * time.Second
	if longest := math.MaxUint16 * time.Second; needed > longest {
		return 0, usage(fmt.Errorf("--instant needs a keep-alive of two thirds of --ttl %v, and MQTT has none above %v: make --ttl at most %v",
			h.ttl, longest, longest*3/2))
	}
	return needed, nil
}

// hold connects, and calls work with a context that ends with a signal.
func (h *holdFlags) hold(cmd *cobra.Command, arguments []string, work func(context.Context, *holderProcess, lease.Options) error) error {
	process, stop := startClient(cmd, slog.LevelInfo)
	defer stop()
	o, err := h.leaseOptions(process.logger)
	if err != nil {
		return err
	}
	held := &holderProcess{holdFlags: h, name: arguments[0], args: arguments[1:], logger: process.logger, signals: make(chan os.Signal, 16)}
	if held.path, err = findProgram(held.args[0]); err != nil {
		return err
	}
	if err := supervise.CanSupervise(); err != nil {
		return err
	}
	address, dialing, err := h.connection.options(process)
	if err != nil {
		return err
	}
	if h.instant {
		keepAlive, err := h.keepAlive()
		if err != nil {
			return err
		}
		dialing.KeepAlive = max(dialing.KeepAlive, keepAlive)
		dialing.Dialer = held.socket.dial
	}
	defer supervise.Adopt()()
	ctx, release := held.catchSignals(cmd.Context())
	defer release()
	process.manager = systemd.FromEnvironment(process.logger) // before the child gets the environment
	defer process.manager.Close()
	held.manager = process.manager
	// The watchdog of systemd hears that this process runs. A child that works or hangs is the
	// matter of --health.
	return process.run(ctx, nil, func(ctx context.Context) error {
		if held.client, err = h.dial(ctx, address, dialing); err != nil {
			return err
		}
		defer held.client.Close()
		held.logger = held.client.Dispatched(held.logger) // in order with the lines of the lease
		// Whatever still waits for the broker, to free the lease, ends with the client.
		defer context.AfterFunc(held.givenUp, func() { _ = held.client.Close() })()
		held.manager.Ready("standing by for the lease " + held.name)
		return work(ctx, held, o)
	})
}

// dial connects within --timeout, and within --wait.
func (h *holdFlags) dial(ctx context.Context, address string, options transport.Options) (*transport.Client, error) {
	if h.wait <= 0 || h.wait >= h.connection.timeout {
		return h.connection.dial(ctx, address, options, true)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, h.wait, fmt.Errorf("gave up after --wait %v", h.wait))
	defer cancel()
	client, err := h.connection.dial(waiting, address, options, true)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil && exitCode(err) == exitFailure {
		err = exitWith(exitUnreachable, err)
	}
	return client, err
}

// findProgram returns the file of a program, as a shell finds it.
func findProgram(name string) (path string, err error) {
	if name == "" {
		return "", usage(errors.New("the name of the command is empty"))
	}
	path, err = exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	var cause *exec.Error
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return "", exitWith(supervise.CodeNotFound, fmt.Errorf("cannot start %s: it was not found", name))
	case errors.As(err, &cause):
		err = cause.Err // without the name, which stands before
	}
	return "", exitWith(supervise.CodeNotExecutable, fmt.Errorf("cannot start %s: %w", name, err))
}

// signalUse is what becomes of a signal.
type signalUse int

const (
	forChild signalUse = iota // it is passed on
	endsWork                  // it is the first that asks this process to end
	repeated                  // it is the first one once more
	givesUp                   // it ends what still waits for the broker
)

// endSignals are the signals that ask this process to end.
type endSignals struct{ first time.Time }

// sameSignal is how long after the first one another one is taken for the same request: timeout(1)
// signals its command, and then its whole group. The child keeps its grace then.
const sameSignal = 100 * time.Millisecond

// use returns what becomes of a signal that comes now. end says that it asks this process to end. ended
// is when the child ended by itself, or nil: from then on only the broker is waited for. A signal that
// comes right after that may be the one that has ended the child, as where a service manager signals
// all processes at once, and the lease is still released.
func (e *endSignals) use(end, hasChild bool, ended *time.Time, now time.Time) signalUse {
	switch {
	case !end:
		return forChild
	case e.first.IsZero() && ended != nil && now.Sub(*ended) >= sameSignal:
		e.first = now
		return givesUp
	case e.first.IsZero():
		e.first = now
		return endsWork
	case now.Sub(e.first) < sameSignal:
		return repeated
	case hasChild:
		return forChild // package supervise kills it
	}
	return givesUp
}

// catchSignals returns a context that ends with the first signal that asks this process to end. All
// other signals, and those after it, are for the child. Without a child, the next one that asks for
// the end ends givenUp. So does the first one after a child that ended by itself.
func (h *holderProcess) catchSignals(parent context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent) // which a signal may have ended before this process catches the others
	givenUp, giveUp := context.WithCancel(context.Background())
	h.givenUp = givenUp
	caught, stop := supervise.CatchSignals()
	terminal := supervise.HasTerminal()
	finished, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var ends endSignals
		for {
			select {
			case s := <-caught:
				// A terminal that closes ends what waits in it. A service that stands by has nothing to reload.
				hasChild := h.hasChild.Load()
				end := supervise.IsEnd(s) || supervise.IsHangup(s) && terminal && !hasChild
				switch ends.use(end, hasChild, h.ended.Load(), time.Now()) {
				case endsWork:
					cancel(&interruptedError{s}) // ctx may have ended with parent, by the same signal
				case givesUp:
					cancel(&interruptedError{s}) // it may be the first one
					giveUp()
				case forChild:
					select {
					case h.signals <- s:
					default: // sixteen wait: the child is not reading them
					}
				}
			case <-finished:
				return
			}
		}
	}()
	return ctx, func() {
		close(finished)
		<-done
		stop()
		giveUp()
		cancel(nil)
	}
}

// childEnvironment returns the environment of this process without the client id: with it, a
// command such as "tenure set" in the child would end the connection of this process, and with
// that the tenure.
func childEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(setting string) bool {
		return strings.HasPrefix(setting, settings.Variable("client-id")+"=")
	})
}

// runChild runs the child until it and all that it started are gone. ctx ends it. If the lease was
// lost while the child ran, and nothing else ended the child, the error has exitLost.
func (h *holderProcess) runChild(ctx context.Context, tenure *lease.Tenure, token hlc.Token) (supervise.Status, error) {
	holder := cmp.Or(h.holder, h.client.ClientID())
	h.logger.Info("the child starts", "lease", h.name, "token", token, "holder", holder, "command", h.args[0])
	env := append(childEnvironment(),
		"TENURE_NAME="+h.name,
		"TENURE_TOKEN="+token.String(),
		"TENURE_HOLDER="+holder,
		"TENURE_DEADLINE="+time.Now().Add(tenure.Remaining()).UTC().Format(time.RFC3339Nano))
	h.manager.Status("holding the lease " + h.name + " with token " + token.String() + ", and running " + h.args[0])
	var connection func() (syscall.RawConn, error)
	if h.instant {
		connection = h.socket.raw
	}
	h.hasChild.Store(true)
	status, err := supervise.Run(ctx, tenure, supervise.Options{
		Connection: connection,
		Name:       h.name, Path: h.path, Args: h.args, Env: env, TTL: h.ttl, Grace: h.grace, Instant: h.instant,
		Signals: h.signals, Logger: h.logger,
	})
	h.hasChild.Store(false)
	switch {
	case supervise.IsTooLarge(err): // another try would end the same way
		return status, exitWith(supervise.CodeNotExecutable,
			fmt.Errorf("cannot start %s: its arguments and its environment are too large with those that tenure adds: %w", h.args[0], err))
	case err != nil:
		return status, err
	}
	h.logger.Info("the child ended", "lease", h.name, "status", status)
	if status.Stopped {
		return status, nil
	}
	ended := time.Now()
	h.ended.Store(&ended)
	if err := h.confirm(tenure); err != nil {
		return status, exitWith(exitLost, fmt.Errorf("the lease was lost while the child ran, which ended by itself (%v): %w", status, err))
	}
	return status, nil
}

// confirm asks the store whether the lease was held until now. A lease that was taken by force is
// not known as lost until a notification or a renewal says so. If the store does not answer, the
// deadline decides: it had not passed when the child ended, and may pass while this waits. The same
// goes for a wait that a signal has ended, with the client.
func (h *holderProcess) confirm(tenure *lease.Tenure) error {
	if _, err := tenure.Token(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(h.ttl, h.connection.timeout))
	defer cancel()
	_ = tenure.Confirm(ctx)
	_, err := tenure.Token()
	if errors.Is(err, lease.ErrDeadlinePassed) || errors.Is(err, transport.ErrClosed) && h.givenUp.Err() != nil {
		return nil
	}
	return err
}

// errStoodStill: the lease was held, and too little of it was left for the child.
var errStoodStill = errors.New("this process, or its machine, stood still for too long")

// lossPatience bounds how long this process waits to hear of the end of a connection, which the guard
// has seen.
const lossPatience = time.Second

// lossOf returns why the lease was lost, after that has ended the child, or kept it from starting.
func (h *holderProcess) lossOf(tenure *lease.Tenure) error {
	if h.instant { // the guard watches the connection too, and may be first
		patience := time.NewTimer(lossPatience)
		defer patience.Stop()
		select {
		case <-tenure.Context().Done():
		case <-patience.C:
		}
	}
	return cmp.Or(context.Cause(tenure.Context()), errStoodStill)
}

// exitOf returns the error with which the process exits after a child with this status.
func exitOf(status supervise.Status) error {
	if status.Signal == int(syscall.SIGINT) {
		return &childInterrupted{byKey: status.ByKey}
	}
	if code := status.ExitCode(); code != 0 {
		return exitWith(code, nil)
	}
	return nil
}
