package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/lease"
)

// forever is the default of --wait.
const forever = time.Duration(-1)

// errWaited is the cause of the end of a wait.
var errWaited = errors.New("the wait timed out")

// lockCommand is "tenure lock".
func lockCommand() *cobra.Command {
	var h holdFlags
	var wait string
	cmd := &cobra.Command{
		Use:   "lock [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Wait for a lease, run a command once while it is held, and release it",
		Long: `Wait for a lease, run a command once while it is held, and release it: flock
across machines. It ends with the child's exit code, or with 64 if the lease is held
(--wait 0), 65 after --wait, 66 if the lease was lost while the child ran, or before
it started. Where no store answers, or the store refuses, --wait ends with 67 or 68.

` + childHelp + "\n\n" + connectionHelp,
		Example: `lock jobs/nightly -- /usr/local/bin/backup --full
lock --wait 0 jobs/nightly -- backup || echo "it runs elsewhere"
lock --wait 30s --ttl 30s --grace 5s migrations -- ./migrate.sh`,
		Args: programArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			limit, err := parseWait(wait)
			if err != nil {
				return usage(err)
			}
			h.wait = max(limit, 0)
			began := time.Now()
			return h.hold(cmd, arguments, func(ctx context.Context, p *holderProcess, o lease.Options) error {
				if limit > 0 { // a part of it went to the connection
					limit = max(limit-time.Since(began), time.Millisecond)
				}
				return p.lock(ctx, limit, o)
			})
		},
	}
	explainDashes(cmd, "a flag of the child", "NAME -- COMMAND")
	h.register(cmd.Flags())
	cmd.Flags().StringVar(&wait, "wait", "forever", "how long to wait for the lease: a duration, 0 to try once, or forever")
	return cmd
}

// programArguments accepts a name and, after --, a command with its arguments.
func programArguments(cmd *cobra.Command, arguments []string) error {
	switch before := cmd.ArgsLenAtDash(); {
	case len(arguments) == 0 || before == 0:
		return errors.New("give the name of the lease: NAME -- COMMAND")
	case before < 0:
		return fmt.Errorf("give the command after --, as in: %s -- COMMAND", arguments[0])
	case before > 1:
		return fmt.Errorf("%q is one argument too many before the --: give NAME -- COMMAND", arguments[1])
	case len(arguments) == 1:
		return fmt.Errorf("give a command after %s --", arguments[0])
	}
	return nil
}

func parseWait(text string) (time.Duration, error) {
	if text == "forever" {
		return forever, nil
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit < 0 {
		return 0, fmt.Errorf("--wait %q is not a duration such as 30s, 0, or forever", text)
	}
	return limit, nil
}

// lock acquires the lease, runs the child, and releases the lease.
func (h *holderProcess) lock(ctx context.Context, limit time.Duration, o lease.Options) error {
	l, err := lease.New(h.client, h.name, o)
	if err != nil {
		return usage(err)
	}
	tenure, err := h.acquire(ctx, l, limit)
	if err != nil {
		settling, cancel := context.WithTimeout(context.Background(), min(h.ttl, h.connection.timeout))
		defer cancel()
		_ = l.Settle(settling) // what it has not freed is logged when the client closes
		return err
	}
	defer h.release(tenure)
	token, err := tenure.Token()
	if err != nil {
		return exitWith(exitLost, fmt.Errorf("the lease was lost before the child started: %w", err))
	}
	// The child ends with the tenure, or with a signal.
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(tenure.Context(), func() { cancel(context.Cause(tenure.Context())) })()
	// From a signal on, the deadline stands, as it would for a leader that hands over.
	defer context.AfterFunc(ctx, tenure.StopRenewing)()
	status, err := h.runChild(working, tenure, token)
	switch {
	case err != nil:
		return err
	case status.NeverStarted() && ctx.Err() != nil:
		return context.Cause(ctx)
	case status.NeverStarted():
		return exitWith(exitLost, fmt.Errorf("the lease was lost before the child started: %w", h.lossOf(tenure)))
	case status.Stopped && ctx.Err() == nil:
		return exitWith(exitLost, fmt.Errorf("the lease was lost, and the child was ended: %w", h.lossOf(tenure)))
	}
	return exitOf(status)
}

// acquire waits for the lease.
func (h *holderProcess) acquire(ctx context.Context, l *lease.Lease, limit time.Duration) (*lease.Tenure, error) {
	if limit == 0 {
		trying, cancel := context.WithTimeout(ctx, h.connection.timeout)
		defer cancel()
		tenure, err := l.TryAcquire(trying)
		if errors.Is(err, lease.ErrHeld) {
			return nil, exitWith(exitHeld, err)
		}
		return tenure, signalCause(ctx, err)
	}
	waiting := ctx
	if limit != forever {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	tenure, err := l.Acquire(waiting)
	switch {
	case err == nil:
		return tenure, nil
	case ctx.Err() == nil && errors.Is(err, errWaited):
		return nil, exitWith(waitedCode(err), fmt.Errorf("--wait %v: %w", h.wait, err))
	}
	return nil, signalCause(ctx, err)
}

// waitedCode returns the exit code after a wait that ended with err. A script may try again later after
// exitTimeout. No lease was held by another where the broker has no store, or where the store refuses.
func waitedCode(err error) int {
	if code := exitCode(err); !errors.Is(err, lease.ErrHeld) && (code == exitUnreachable || code == exitRefused) {
		return code
	}
	return exitTimeout
}

// release frees the lease. The child is gone.
func (h *holderProcess) release(tenure *lease.Tenure) {
	ctx, cancel := context.WithTimeout(context.Background(), min(h.ttl, h.connection.timeout))
	defer cancel()
	if err := tenure.Release(ctx); err != nil {
		h.logger.Warn("the lease could not be released", "error", err)
	}
}
