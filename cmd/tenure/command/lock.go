package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/lease"
)

// lockFlags are the flags of lock.
type lockFlags struct {
	holdFlags
	wait time.Duration
	once bool // --wait is 0
}

// lockCommand is "tenure lock".
func lockCommand() *cobra.Command {
	var l lockFlags
	cmd := &cobra.Command{
		Use:   "lock [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Wait for a lease, run a command once while it is held, and release it",
		Long: `Wait for a lease, run a command once while it is held, and release it: flock across
machines. It ends with the child's exit code, 64 or 65 without the lease, or 66 if it
was lost.

` + childHelp,
		Example: "lock --wait 0 jobs/nightly -- backup || echo \"it runs elsewhere\"\n" +
			"lock --wait 30s --ttl 30s --grace 5s migrations -- ./migrate.sh",
		Args: programArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if l.wait < 0 {
				return usagef("--wait %v is negative", l.wait)
			}
			l.once = l.wait == 0 && cmd.Flags().Changed("wait")
			return l.hold(cmd, arguments, l.wait, l.run)
		},
	}
	l.register(cmd.Flags())
	l.registerGrace(cmd.Flags())
	cmd.Flags().DurationVar(&l.wait, "wait", 0, "how long to wait for the lease; 0 tries once; default: for ever")
	return cmd
}

// run acquires the lease, runs the child, and releases the lease.
func (l *lockFlags) run(ctx, waiting context.Context, p *holderProcess, o lease.Options) error {
	lock, err := lease.New(p.client, p.name, o)
	if err != nil {
		return usage(err)
	}
	tenure, err := l.acquire(waiting, lock)
	if err != nil {
		settling, cancel := l.brief()
		defer cancel()
		_ = lock.Settle(settling) // what it has not freed is logged when the client closes
		return err
	}
	defer func() { // the child is gone
		releasing, cancel := l.brief()
		defer cancel()
		if err := tenure.Release(releasing); err != nil {
			p.logger.Warn("the lease could not be released", "error", err)
		}
	}()
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
	status, err := p.runChild(working, tenure, token, nil)
	switch {
	case err != nil:
		return err
	case status.NeverStarted() && ctx.Err() != nil:
		return context.Cause(ctx)
	case status.NeverStarted():
		return exitWith(exitLost, fmt.Errorf("the lease was lost before the child started: %w", p.lossOf(tenure)))
	case status.Stopped && ctx.Err() == nil:
		return exitWith(exitLost, fmt.Errorf("the lease was lost, and the child was ended: %w", p.lossOf(tenure)))
	}
	return exitOf(status)
}

// acquire waits for the lease, or tries once.
func (l *lockFlags) acquire(waiting context.Context, lock *lease.Lease) (*lease.Tenure, error) {
	if l.once {
		trying, cancel := context.WithTimeout(waiting, l.connection.timeout)
		defer cancel()
		tenure, err := lock.TryAcquire(trying)
		if errors.Is(err, lease.ErrHeld) {
			err = exitWith(exitHeld, err)
		}
		return tenure, err
	}
	// Where the broker has no store, or the store refuses, no other holder was in the way.
	tenure, err := lock.Acquire(waiting)
	if errors.Is(err, lease.ErrHeld) && errors.As(err, new(*timeoutError)) {
		err = exitWith(exitTimeout, err)
	}
	return tenure, err
}
