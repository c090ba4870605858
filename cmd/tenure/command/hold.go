package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/cmd/tenure/internal/systemd"
	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// childHelp is for the help of run and lock.
const childHelp = `When the child must end, its process group gets SIGTERM, and after --grace SIGKILL, while
the lease still stands; with --instant, or if the lease is lost at once, SIGKILL. It has
TENURE_NAME, TENURE_TOKEN, TENURE_HOLDER and TENURE_DEADLINE. docs/run.md says more.`

// holdFlags are the flags that run and lock share: a lease, and a child while it is held.
type holdFlags struct {
	connection connection
	ttl, grace time.Duration
	holder     string
	instant    bool
	after      string     // runs when the child is gone
	warn       bool       // grace is a warning for programs that are no children
	level      slog.Level // of the log
}

func (h *holdFlags) register(flags *pflag.FlagSet) {
	h.connection.register(flags)
	flags.DurationVar(&h.ttl, "ttl", 10*time.Second, "how long others wait after a crash: since the last renewal")
	flags.StringVar(&h.holder, "holder", "", "name of the holder that others see; default: the client id")
}

// registerChild adds the flags for a child, which its guard can kill in the moment in which the lease is lost.
func (h *holdFlags) registerChild(flags *pflag.FlagSet) {
	flags.BoolVar(&h.instant, "instant", false, "release the lease, and kill the child, once the connection is lost")
	flags.DurationVar(&h.grace, "grace", 0, "how long the child has from SIGTERM to SIGKILL; default: a tenth of --ttl")
}

// leaseOptions returns the options of the lease, or which flags do not fit.
func (h *holdFlags) leaseOptions() (options lease.Options, err error) {
	grace := "--grace"
	if h.warn {
		grace = "--warn"
	}
	if h.ttl <= 0 || h.grace < 0 {
		return options, usagef("--ttl %v must be positive, and %s %v not negative", h.ttl, grace, h.grace)
	}
	if err := (lease.Options{TTL: h.ttl}).Validate(); err != nil {
		return options, err
	}
	h.grace = cmp.Or(h.grace, h.ttl/10)
	// The child gets SIGTERM when the tenure's context ends, and SIGKILL a margin before its deadline at the latest.
	period := h.grace
	if !h.warn {
		period += supervise.Margin(h.ttl)
	}
	if h.after != "" {
		period += h.grace
	}
	options = lease.Options{TTL: h.ttl, GracePeriod: period, Holder: h.holder, InstantFailover: h.instant}
	if options.Validate() != nil {
		err = usagef("--ttl %v cannot carry %s %v: a renewal without an answer must leave time for another one, for %[2]s "+
			"(with --after twice), and for the kill; make --ttl longer, four times %[2]s and at least 500ms, or %[2]s shorter",
			h.ttl, grace, h.grace)
	}
	return options, err
}

// keepAlive returns the shortest keep-alive with which --instant is safe: a broker takes a connection
// for lost after one and a half of it, and must not release a lease in which its holder still believes.
func (h *holdFlags) keepAlive() time.Duration {
	whole := (h.ttl + time.Second - 1) / time.Second
	return (whole*2 + 2) / 3 * time.Second
}

// brief returns a context for what this process still asks the store at its end.
func (h *holdFlags) brief() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), min(h.ttl, h.connection.timeout))
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
	ended    atomic.Bool     // the child, by itself: the work is done
	givenUp  context.Context // ends with a further signal to end, when there is no child
	manager  *systemd.Manager
	socket   atomic.Pointer[net.TCPConn] // to the broker, with --instant
}

// dial is a Dialer of package transport.
func (h *holderProcess) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		h.socket.Store(conn.(*net.TCPConn))
	}
	return conn, err
}

// work is what run or lock does with a lease, once it is connected. waiting ends with ctx, and with --wait.
type work func(ctx, waiting context.Context, p *holderProcess, o lease.Options) error

// hold connects, and calls work with a context that ends with a signal. wait bounds the time until the lease is
// held; 0: --timeout bounds the connection only.
func (h *holdFlags) hold(cmd *cobra.Command, arguments []string, wait time.Duration, work work) error {
	logger, _, stop := startLog(cmd, h.level)
	defer stop()
	o, err := h.leaseOptions()
	if err != nil {
		return err
	}
	p := &holderProcess{holdFlags: h, logger: logger, name: arguments[0], args: arguments[1:]}
	p.signals = make(chan os.Signal, 16)
	if !h.warn {
		if p.path, err = findProgram(p.args[0]); err != nil {
			return err
		}
		if err := supervise.CanSupervise(); err != nil {
			return err
		}
	}
	address, dialing, err := h.connection.options(logger)
	if err != nil {
		return err
	}
	if h.instant {
		dialing.KeepAlive, dialing.Dialer = max(dialing.KeepAlive, h.keepAlive()), p.dial
	}
	defer supervise.Adopt()()
	ctx, release := p.catchSignals(cmd.Context())
	defer release()
	p.manager = systemd.FromEnvironment(logger) // before the child gets the environment
	defer p.manager.Close()
	// The watchdog of systemd hears that this process runs. A child that works or hangs is the
	// matter of --health.
	process := &process{logger: logger, manager: p.manager, node: admin.NewNode()}
	return process.run(ctx, nil, func(ctx context.Context) error {
		waiting := ctx
		if wait > 0 {
			var cancel context.CancelFunc
			waiting, cancel = within(ctx, "wait", wait)
			defer cancel()
		}
		if p.client, err = h.connection.dial(waiting, address, dialing, true); err != nil {
			if exitCode(err) == exitTimeout { // no other holder was in the way
				err = exitWith(exitUnreachable, err)
			}
			return err
		}
		defer p.client.Close()
		p.logger = p.client.Dispatched(logger) // in order with the lines of the lease
		o.Logger = logger
		// Whatever still waits for the broker, to free the lease, ends with the client.
		defer context.AfterFunc(p.givenUp, func() { _ = p.client.Close() })()
		p.manager.Ready("standing by for the lease " + p.name)
		return work(ctx, waiting, p, o)
	})
}

// programArguments accepts a name and, after --, a command with its arguments.
func programArguments(cmd *cobra.Command, arguments []string) error {
	if cmd.ArgsLenAtDash() != 1 || len(arguments) < 2 || arguments[0] == "" {
		return fmt.Errorf("usage: %s", cmd.UseLine())
	}
	return nil
}

// findProgram returns the file of a program, as a shell finds it.
func findProgram(name string) (path string, err error) {
	if path, err = exec.LookPath(name); err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		err = exitWith(supervise.StartCode(err), fmt.Errorf("cannot start the program: %w", err))
	}
	return path, err
}

// endSignals are the signals that ask this process to end.
type endSignals struct{ first time.Time }

// sameSignal is how long after the first one another one is taken for the same request: timeout(1)
// signals its command, and then its whole group. The child keeps its grace then.
const sameSignal = 100 * time.Millisecond

// use returns whether a signal that comes now is passed on to the child, and whether it ends what still waits for
// the broker; it ends the work otherwise. end says that it asks this process to end.
func (e *endSignals) use(end, hasChild bool, now time.Time) (pass, giveUp bool) {
	switch {
	case !end:
		return true, false
	case e.first.IsZero():
		e.first = now
		return false, false
	case now.Sub(e.first) < sameSignal:
		return false, false
	}
	return hasChild, !hasChild // package supervise kills a child
}

// catchSignals returns a context that ends with the first signal that asks this process to end. All
// other signals, and those after it, are for the child. Without a child, the next one that asks for
// the end ends givenUp. After a child that ended by itself, the first one does so, a second later.
func (h *holderProcess) catchSignals(parent context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent) // which a signal may have ended before this process catches the others
	givenUp, giveUp := context.WithCancel(context.Background())
	h.givenUp = givenUp
	caught, stop := supervise.CatchSignals()
	terminal := supervise.HasTerminal()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ends endSignals
		for s := range caught {
			// A terminal that closes ends what waits in it. A service that stands by has nothing to reload.
			hasChild := h.hasChild.Load()
			end := supervise.IsEnd(s) || supervise.IsHangup(s) && terminal && !hasChild
			pass, late := ends.use(end, hasChild, time.Now())
			if pass {
				select {
				case h.signals <- s:
				default: // sixteen wait: the child is not reading them
				}
				continue
			}
			cancel(&interruptedError{signal: s.(syscall.Signal)}) // ctx may have ended with parent, by the same signal
			if late {
				giveUp()
			} else if h.ended.Load() {
				time.AfterFunc(time.Second, giveUp)
			}
		}
	}()
	return ctx, func() {
		stop()
		<-done
		giveUp()
		cancel(nil)
	}
}

// childEnvironment returns the environment of this process without the client id: with it, a
// command such as "tenure set" in the child would end the connection of this process, and with
// that the tenure.
func childEnvironment() []string { return append(os.Environ(), settings.Variable("client-id")+"=") }

// environment is what the child and --after have, without a tenure.
func (h *holderProcess) environment() []string {
	return append(childEnvironment(), "TENURE_NAME="+h.name, "TENURE_HOLDER="+cmp.Or(h.holder, h.client.ClientID()))
}

// cleanUp runs --after where no child runs. The guard of an earlier run may still end its child.
func (h *holderProcess) cleanUp(ctx context.Context) error {
	lock, err := supervise.Lock(h.name)
	if err != nil {
		return fmt.Errorf("another run of this lease works on this machine: %w", err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(ctx, h.grace)
	defer cancel()
	return supervise.Check(ctx, "--after", h.after, h.environment())
}

// runChild runs the child until it and all that it started are gone. ctx ends it. If the lease was
// lost while the child ran, and nothing else ended the child, the error has exitLost.
func (h *holderProcess) runChild(ctx context.Context, tenure *lease.Tenure, token hlc.Token, dog *watchdog.Dog) (
	supervise.Status, error) {
	holder := cmp.Or(h.holder, h.client.ClientID())
	h.logger.Info("the child starts", "lease", h.name, "token", token, "holder", holder, "command", h.args[0])
	h.manager.Status("holding the lease " + h.name + " with token " + token.String() + ", and running " + h.args[0])
	options := supervise.Options{
		Name: h.name, Path: h.path, Args: h.args, TTL: h.ttl, Grace: h.grace, Instant: h.instant,
		Signals: h.signals, Logger: h.logger, After: h.after, Watchdog: dog,
		Env: append(h.environment(),
			"TENURE_TOKEN="+token.String(),
			"TENURE_DEADLINE="+time.Now().Add(tenure.Remaining()).UTC().Format(time.RFC3339Nano)),
	}
	if h.instant {
		options.Connection = func() (syscall.RawConn, error) { return h.socket.Load().SyscallConn() }
	}
	h.hasChild.Store(true)
	status, err := supervise.Run(ctx, tenure, options)
	h.hasChild.Store(false)
	if errors.Is(err, syscall.E2BIG) { // another try would end the same way
		err = exitWith(supervise.CodeNotExecutable,
			fmt.Errorf("cannot start %s: its arguments and its environment are too large: %w", h.args[0], err))
	}
	if err != nil {
		return status, err
	}
	h.logger.Info("the child ended", "lease", h.name, "status", status)
	if status.Stopped {
		return status, nil
	}
	h.ended.Store(true)
	if err := h.confirm(tenure); err != nil {
		err = fmt.Errorf("the lease was lost while the child ran, which ended by itself (%v): %w", status, err)
		return status, exitWith(exitLost, err)
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
	ctx, cancel := h.brief()
	defer cancel()
	_ = tenure.Confirm(ctx)
	_, err := tenure.Token()
	if errors.Is(err, lease.ErrDeadlinePassed) || errors.Is(err, transport.ErrClosed) && h.givenUp.Err() != nil {
		return nil
	}
	return err
}

// lossPatience bounds how long this process waits to hear of the end of a connection, which the guard
// has seen.
const lossPatience = time.Second

// lossOf returns why the lease was lost, after that has ended the child, or kept it from starting.
func (h *holderProcess) lossOf(tenure *lease.Tenure) error {
	if h.instant { // the guard watches the connection too, and may be first
		select {
		case <-tenure.Context().Done():
		case <-time.After(lossPatience):
		}
	}
	stoodStill := errors.New("this process, or its machine, stood still for too long")
	return cmp.Or(context.Cause(tenure.Context()), stoodStill)
}

// exitOf returns the error with which the process exits after a child with this status.
func exitOf(status supervise.Status) error {
	if status.Signal == int(syscall.SIGINT) {
		return &interruptedError{signal: syscall.SIGINT, child: true, byKey: status.ByKey}
	}
	if code := status.ExitCode(); code != 0 {
		return exitWith(code, nil)
	}
	return nil
}
