package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
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
Each machine runs "tenure run" with the same name. One of them leads, and runs the
command as its child. When it cannot renew the lease any more, or is unhealthy, it
ends the child and stands by; another one leads.

When the child ends by itself, the lease is released and run ends with its exit
code. A service manager starts it again; meanwhile another machine may lead.

` + childHelp + "\n\n" + connectionHelp,
		Example: `  tenure run web -- python3 -m http.server 8000
  tenure run --holder 10.0.0.7:8000 --health 'test -e /srv/ready' web -- ./server
  tenure run --rank 1 --ttl 2s plc -- ./gateway   # the other node has --rank 0 --fail-back 1m`,
		Args: programArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := r.check(); err != nil {
				return err
			}
			return r.hold(cmd, arguments, r.run)
		},
	}
	r.register(cmd.Flags())
	flags := cmd.Flags()
	flags.IntVar(&r.rank, "rank", 0, "0 is the preferred node; a node waits a while for nodes of a lower rank")
	flags.DurationVar(&r.failBack, "fail-back", 0, "how long this node waits, healthy, before it asks a leader of a worse rank to hand over; 0: it never asks")
	flags.StringVar(&r.health, "health", "", "command line for "+supervise.Shell+" that ends with 0 while this node can lead; a node that cannot ends its child and stands by")
	flags.DurationVar(&r.healthEvery, "health-every", 0, "pause between two calls of --health; default: a third of --ttl")
	flags.DurationVar(&r.healthTimeout, "health-timeout", 0, "how long --health may take; then it is killed, and counts as failed; default: a third of --ttl")
	return cmd
}

// electionOptions are the options of the election.
func (r *runFlags) electionOptions(o lease.Options) election.Options {
	options := election.Options{TTL: o.TTL, Lease: o, Rank: r.rank, FailBackAfter: r.failBack,
		HealthEvery: r.healthEvery, HealthTimeout: r.healthTimeout, Logger: o.Logger}
	options.Lease.TTL = 0
	if r.health != "" {
		options.Health = func(ctx context.Context) error {
			return supervise.Check(ctx, r.health, childEnvironment())
		}
	}
	return options
}

// check refuses flags that contradict each other.
func (r *runFlags) check() error {
	switch {
	case r.rank < 0:
		return usage(fmt.Errorf("--rank %d is negative; the best rank is 0", r.rank))
	case r.failBack < 0, r.healthEvery < 0, r.healthTimeout < 0:
		return usage(errors.New("--fail-back, --health-every and --health-timeout are durations of at least 0"))
	case r.health == "" && (r.healthEvery != 0 || r.healthTimeout != 0):
		return usage(errors.New("--health-every and --health-timeout need --health"))
	}
	return nil
}

// errChildEnded is the cause of the end of an election whose child ended by itself.
var errChildEnded = errors.New("the child ended")

// run campaigns, and runs the child while this node leads.
func (r *runFlags) run(ctx context.Context, p *holderProcess, o lease.Options) error {
	options := r.electionOptions(o)
	elector, err := election.New(p.client, p.name, options)
	if err != nil {
		return usage(errors.New(strings.TrimPrefix(err.Error(), "election: ")))
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

// switchoverFlags are the flags of switchover.
type switchoverFlags struct {
	connection
	to     string
	wait   time.Duration
	asJSON bool
}

func switchoverCommand() *cobra.Command {
	var s switchoverFlags
	cmd := &cobra.Command{
		Use:   "switchover NAME",
		Short: "Make the leader of an election hand over, to a candidate by name or to any other",
		Long: `Ask the leader of an election, wherever it runs, to drain and hand over: to the
candidate that --to names, as "tenure leader" would print it, or to any other one.
The command waits for that, and prints which candidate leads and for how long none
did. It works with "tenure run" and with electors of the library.

The leader hands over only when a candidate has said that it is ready. If none
does within --wait, the leader leads on, and the exit code is 65; the same if the
leader does not end in time. If another candidate than --to took over, the exit code
is 64, if the leader refuses 68, and if none leads 69.

The client needs the right to write the key NAME/bid, as the candidates do.

` + connectionHelp,
		Example: `  tenure switchover press-7/active
  tenure switchover press-7/active --to gateway-b --wait 1m`,
		Args: exactly("the name of the election"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if s.wait <= 0 {
				return usage(fmt.Errorf("--wait %v is not a duration above 0", s.wait))
			}
			return s.with(cmd, func(ctx context.Context, client *transport.Client) error {
				return s.run(ctx, cmd, client, arguments[0])
			})
		},
	}
	flags := cmd.Flags()
	s.connection.register(flags)
	flags.StringVar(&s.to, "to", "", "name of the holder that is to lead; default: any other candidate")
	flags.DurationVar(&s.wait, "wait", 30*time.Second, "how long to wait until the other candidate leads")
	flags.BoolVar(&s.asJSON, "json", false, "print JSON")
	settings.CommandLineOnly(flags, "to")
	return cmd
}

// A switchoverReport is what switchover prints as JSON: the leader, and what was before.
type switchoverReport struct {
	holderReport
	From       *string       `json:"from,omitempty"`
	FromBase64 []byte        `json:"fromBase64,omitempty"`
	Gap        output.Millis `json:"gapMillis"`
}

func (s *switchoverFlags) run(ctx context.Context, cmd *cobra.Command, client *transport.Client, name string) error {
	waiting, cancel := context.WithTimeoutCause(ctx, s.wait, errWaited)
	defer cancel()
	switched, err := election.Switchover(waiting, client, name, s.to)
	switch {
	case errors.Is(err, election.ErrNoLeader) && waiting.Err() == nil:
		return exitWith(exitMissing, err)
	case errors.Is(err, election.ErrSwitchoverRefused):
		return exitWith(exitRefused, err)
	case errors.Is(err, election.ErrOtherLeads):
		return exitWith(exitHeld, err)
	case ctx.Err() == nil && errors.Is(err, errWaited):
		return exitWith(exitTimeout, err)
	case err != nil:
		return err
	case s.asJSON:
		report := switchoverReport{holderReport: reportHolder(name, switched.To), Gap: output.Millis{Duration: switched.Gap}}
		report.From, report.FromBase64 = output.Text(switched.From.Name)
		return output.JSON(cmd.OutOrStdout(), report)
	}
	to := terminal.Clean(switched.To.Name)
	if switched.To.Value == switched.From.Value {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s leads already\n", to)
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s leads; %s handed over, and none led for %v\n", to,
		terminal.Clean(switched.From.Name), switched.Gap.Round(100*time.Microsecond))
	return err
}
