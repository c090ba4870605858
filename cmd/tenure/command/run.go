package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// runFlags are the flags of run that lock does not have.
type runFlags struct {
	holdFlags
	rank                       int
	failBack                   time.Duration
	health                     string
	healthEvery, healthTimeout time.Duration
}

// runCommand is "tenure run".
func runCommand() *cobra.Command {
	var r runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Run a command on one machine at a time, and on another one after a failure",
		Long: `Run a command on one machine at a time, and on another one after a failure.
Each machine runs it with the same name. One of them leads, and runs the command as
its child. When it cannot renew the lease any more, or is unhealthy, it ends the
child and stands by. When the child ends by itself, run ends with its exit code.

` + childHelp + "\n\n" + connectionHelp,
		Example: `run web -- python3 -m http.server 8000
run --holder 10.0.0.7:8000 --health 'test -e /srv/ready' web -- ./server
run --rank 1 --ttl 2s plc -- ./gateway   # the other node has --rank 0 --fail-back 1m`,
		Args: programArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := r.check(); err != nil {
				return usage(err)
			}
			return r.hold(cmd, arguments, r.run)
		},
	}
	explainDashes(cmd, "a flag of the child", "NAME -- COMMAND")
	r.register(cmd.Flags())
	flags := cmd.Flags()
	flags.IntVar(&r.rank, "rank", 0, "0 is the preferred node; a node waits a while for nodes of a lower rank")
	flags.DurationVar(&r.failBack, "fail-back", 0, "how long this node waits, healthy, before it asks a leader of a worse rank to hand over; 0: it never asks")
	flags.StringVar(&r.health, "health", "", "command line for "+supervise.Shell+" that ends with 0 while this node can lead; a node that cannot ends its child and stands by")
	flags.DurationVar(&r.healthEvery, "health-every", 0, "pause between two calls of --health; default: a third of --ttl")
	flags.DurationVar(&r.healthTimeout, "health-timeout", 0, "how long --health may take; then it is killed, and counts as failed; default: a third of --ttl")
	return cmd
}

// check refuses values that no flag type refuses.
func (r *runFlags) check() error {
	if r.rank < 0 {
		return fmt.Errorf("--rank %d is negative; the best rank is 0", r.rank)
	}
	for _, flag := range []struct {
		name  string
		value time.Duration
		zero  string
	}{
		{"fail-back", r.failBack, "never"},
		{"health-every", r.healthEvery, "a third of --ttl"},
		{"health-timeout", r.healthTimeout, "a third of --ttl"},
	} {
		if flag.value < 0 {
			return fmt.Errorf("--%s %v is negative; 0 means %s", flag.name, flag.value, flag.zero)
		}
	}
	if r.health == "" && (r.healthEvery != 0 || r.healthTimeout != 0) {
		return errors.New("--health-every and --health-timeout need --health")
	}
	return nil
}

// electionOptions are the options of the election.
func (r *runFlags) electionOptions(o lease.Options) election.Options {
	options := election.Options{TTL: o.TTL, Lease: o, Rank: r.rank, FailBackAfter: r.failBack,
		HealthEvery: r.healthEvery, HealthTimeout: r.healthTimeout, Logger: o.Logger}
	options.Lease.TTL = 0
	if r.health != "" {
		options.Health = func(ctx context.Context) error {
			return supervise.Check(ctx, "--health", r.health, childEnvironment())
		}
	}
	return options
}

// errChildEnded is the cause of the end of an election whose child ended by itself.
var errChildEnded = errors.New("the child ended")

// run campaigns, and runs the child while this node leads.
func (r *runFlags) run(ctx context.Context, p *holderProcess, o lease.Options) error {
	options := r.electionOptions(o)
	elector, err := election.New(p.client, p.name, options)
	if err != nil {
		return err
	}
	electing, end := context.WithCancelCause(ctx)
	defer end(nil)
	var last *supervise.Status // of the child that ended the election, or ended because of a signal
	var lost error             // with exitLost, of the child that ended the election
	cutOff := false            // the child was ended with the client
	err = elector.Run(electing, func(term context.Context, t *election.Term) error {
		token, err := t.Token()
		if err != nil {
			return err
		}
		status, err := p.runChild(term, t.Tenure(), token)
		var exit *exitError
		switch {
		case errors.As(err, &exit):
			lost = err
			end(errChildEnded)
		case err != nil:
			return err
		case !status.Stopped:
			last = &status
			end(errChildEnded)
		case ctx.Err() != nil && !status.NeverStarted():
			last = &status
		default:
			if term.Err() == nil { // the guard has ended the child; the client may not know why yet
				_ = p.lossOf(t.Tenure())
			}
			cutOff = !status.NeverStarted() && p.client.Connection().State == transport.Ended
		}
		return nil
	})
	switch {
	case lost != nil:
		return lost
	case last != nil:
		return exitOf(*last)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case cutOff && err != nil: // no campaign can follow: another client has this client id
		return exitWith(exitLost, fmt.Errorf("the lease was lost, and the child was ended: %w", err))
	}
	return err
}
