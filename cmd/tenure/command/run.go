package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/lease"
)

// candidateFlags are the flags that run and elect share: those of an election, and of its lease.
type candidateFlags struct {
	holdFlags
	election election.Options
	health   string
	watchdog watchdog.Setting
}

func (c *candidateFlags) register(flags *pflag.FlagSet) {
	c.holdFlags.register(flags)
	e := &c.election
	flags.IntVar(&e.Rank, "rank", 0, "0 is the preferred node; a node waits a while for nodes of a lower rank")
	flags.DurationVar(&e.FailBackAfter, "fail-back", 0, "after how long to ask a leader of a worse rank to hand over")
	flags.StringVar(&c.health, "health", "", "line for "+supervise.Shell+" that ends with 0 while this node can lead")
	flags.DurationVar(&e.HealthEvery, "health-every", 0, "pause between two calls of --health; default: a third of --ttl")
	flags.DurationVar(&e.HealthTimeout, "health-timeout", 0, "how long --health may take; default: a third of --ttl")
	flags.Func("watchdog", "device that resets a leader that hangs: off, /dev/watchdog, or auto:/dev/watchdog",
		c.watchdog.Set)
}

// runFlags are the flags of run.
type runFlags struct{ candidateFlags }

// runCommand is "tenure run".
func runCommand() *cobra.Command {
	var r runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Run a command on one machine at a time, and on another one after a failure",
		Long: `Run a command on one machine at a time: each runs this with the same name. One leads, and
runs the command as its child. When it cannot renew the lease, or is unhealthy, it ends
the child and stands by. When the child ends by itself, run ends with its exit code.

` + childHelp,
		Example: "run web -- python3 -m http.server 8000\n" +
			"run --rank 1 --ttl 2s plc -- ./gateway   # the other node has --rank 0 --fail-back 1m",
		Args: programArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := r.check(); err != nil {
				return Usage(err)
			}
			return r.hold(cmd, arguments, 0, r.run)
		},
	}
	r.register(cmd.Flags())
	r.registerChild(cmd.Flags())
	cmd.Flags().StringVar(&r.after, "after", "",
		"line for "+supervise.Shell+" that runs when the child is gone, and at the start")
	return cmd
}

// check refuses values that no flag type refuses.
func (c *candidateFlags) check() error {
	e := &c.election
	switch {
	case e.Rank < 0 || min(e.FailBackAfter, e.HealthEvery, e.HealthTimeout) < 0:
		return errors.New("--rank, --fail-back, --health-every and --health-timeout cannot be negative")
	case c.watchdog.Device != "" && c.ttl < watchdog.LeastTTL:
		return fmt.Errorf("--watchdog needs a --ttl of %v at least: devices count in seconds", watchdog.LeastTTL)
	case c.watchdog.Device != "" && c.after != "" && c.grace >= watchdog.Timeout(c.ttl):
		return fmt.Errorf("--watchdog would reset this machine while --after runs: "+
			"make --grace shorter than %v, a quarter of --ttl",
			watchdog.Timeout(c.ttl))
	case c.health == "" && (e.HealthEvery != 0 || e.HealthTimeout != 0):
		return errors.New("--health-every and --health-timeout need --health")
	case c.health != "":
		e.Health = func(ctx context.Context) error {
			return supervise.Check(ctx, "--health", c.health, childEnvironment())
		}
	}
	return nil
}

// options are the options of the election.
func (c *candidateFlags) options(o lease.Options) election.Options {
	options := c.election
	options.TTL, options.Lease, options.Logger = o.TTL, o, o.Logger
	options.Lease.TTL = 0
	return options
}

// errChildEnded is the cause of the end of an election whose child ended by itself.
var errChildEnded = errors.New("the child ended")

// run campaigns, and runs the child while this node leads.
func (r *runFlags) run(ctx, _ context.Context, p *holderProcess, o lease.Options) error {
	elector, err := election.New(p.client, p.name, r.options(o))
	if err != nil {
		return err
	}
	if r.after != "" { // a crash may have left what it removes
		if err := p.cleanUp(ctx); err != nil {
			p.logger.Warn("what an earlier run may have left is not removed", "lease", p.name, "error", err)
		}
	}
	electing, end := context.WithCancelCause(ctx)
	defer end(nil)
	var last *error // of the child that ended the election, or ended because of a signal
	cutOff := false // the child was ended with the client
	err = elector.Run(electing, func(term context.Context, t *election.Term) error {
		token, err := t.Token()
		if err != nil {
			return err
		}
		dog, err := r.watchdog.Open(r.ttl, p.logger)
		if err != nil {
			return err
		}
		status, err := p.runChild(term, t.Tenure(), token, dog)
		result := errors.As(err, new(*exitError))
		switch {
		case err != nil && !result:
			return err
		case result, !status.Stopped, ctx.Err() != nil && !status.NeverStarted():
			if err == nil {
				err = exitOf(status)
			}
			last = &err
			end(errChildEnded)
		default:
			if term.Err() == nil { // the guard has ended the child; the client may not know why yet
				_ = p.lossOf(t.Tenure())
			}
			cutOff = !status.NeverStarted() && p.client.Connection().Ended
		}
		return nil
	})
	switch {
	case last != nil:
		return *last
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case cutOff && err != nil: // no campaign can follow: another client has this client id
		return exitWith(exitLost, fmt.Errorf("the lease was lost, and the child was ended: %w", err))
	}
	return err
}
