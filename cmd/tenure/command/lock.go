package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/lease"
)

// lockFlags are the flags of lock.
type lockFlags struct {
	holdFlags
	wait, atLeast time.Duration
	once          bool // --wait is 0
	quiet         bool
	ownCode       bool // conflictCode is given
	conflictCode  uint8
}

// lockCommand is "tenure lock".
func lockCommand() *cobra.Command {
	var l lockFlags
	cmd := &cobra.Command{
		Use:   "lock [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Wait for a lease, run a command once while it is held, and release it",
		Long: `Wait for a lease, run a command once while it is held, and release it: flock across
machines. --at-least keeps another machine, whose clock is behind, from running a short
job a second time: until then the lease is renewed, and a signal lets it run out.

` + childHelp,
		Example: "lock --wait 0 jobs/nightly -- backup || echo \"it runs elsewhere\"\n" +
			"lock --wait 30s --ttl 30s --grace 5s migrations -- ./migrate.sh",
		Args: programArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if min(l.wait, l.atLeast) < 0 {
				return usagef("--wait %v or --at-least %v is negative", l.wait, l.atLeast)
			}
			given := cmd.Flags().Changed
			l.once = l.wait == 0 && given("wait")
			l.ownCode = given("conflict-exit-code")
			if l.quiet || !given("quiet") && !output.IsTerminal(cmd.ErrOrStderr()) {
				l.level = slog.LevelWarn
			}
			return l.hold(cmd, arguments, l.wait, l.run)
		},
	}
	flags := cmd.Flags()
	l.register(flags)
	l.registerChild(flags)
	flags.DurationVar(&l.wait, "wait", 0, "how long to wait for the lease; 0 tries once; default: for ever")
	flags.DurationVar(&l.atLeast, "at-least", 0, "how long to hold the lease at least, if the child ends earlier")
	flags.Uint8VarP(&l.conflictCode, "conflict-exit-code", "E", 0,
		"exit code in place of 100 and 101; 0: that another has the lease is no failure, and nothing is said")
	flags.BoolVar(&l.quiet, "quiet", false, "log warnings and errors only; default: if standard error is no terminal")
	return cmd
}

// run acquires the lease, runs the child, and releases the lease.
func (l *lockFlags) run(ctx, waiting context.Context, p *holderProcess, o lease.Options) error {
	lock, err := lease.New(p.client, p.name, o)
	if err != nil {
		return Usage(err)
	}
	tenure, err := l.acquire(waiting, lock)
	if err != nil {
		brief, cancel := l.brief()
		defer cancel()
		_ = lock.Settle(brief) // what it has not freed is logged when the client closes
		return err
	}
	obtained, keeps := time.Now(), false
	defer func() { // the child is gone
		if keeps {
			return
		}
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
	left := time.Until(obtained.Add(l.atLeast))
	if left > 0 {
		p.logger.Info("the lease is still held, for --at-least", "lease", p.name, "left", left.Round(time.Millisecond))
	}
	if err := outlast(ctx, tenure, left); err != nil {
		keeps = true
		p.logger.Warn("--at-least is cut short: the lease ends within its TTL", "lease", p.name, "cause", err)
	}
	return exitOf(status)
}

// outlast waits for so long, while the tenure is renewed. It returns why that ended too early: by ctx, or with the
// tenure.
func outlast(ctx context.Context, tenure *lease.Tenure, left time.Duration) error {
	if left <= 0 {
		return nil
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
	case <-tenure.Context().Done(): // with ctx, perhaps: a signal closes the client
	}
	return cmp.Or(context.Cause(ctx), context.Cause(tenure.Context()))
}

// acquire waits for the lease, or tries once. Where the broker has no store, or the store refuses, no other holder was
// in the way.
func (l *lockFlags) acquire(waiting context.Context, lock *lease.Lease) (tenure *lease.Tenure, err error) {
	code := exitTimeout
	if l.once {
		trying, cancel := context.WithTimeout(waiting, l.connection.timeout)
		defer cancel()
		tenure, err = lock.TryAcquire(trying)
		code = exitHeld
	} else {
		tenure, err = lock.Acquire(waiting)
	}
	if !errors.Is(err, lease.ErrHeld) || code == exitTimeout && !errors.As(err, new(*timeoutError)) {
		return tenure, err
	}
	if l.ownCode {
		code = int(l.conflictCode)
	}
	if code == 0 {
		err = nil
	}
	return nil, exitWith(code, err)
}
