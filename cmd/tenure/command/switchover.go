package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

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
candidate that --to names, as holder would print it, or to any other one. It prints
which candidate leads then, and for how long none did.

The leader hands over only when a candidate has said that it is ready. If that does
not happen within --wait, the exit code is 65. It is 64 if another candidate than
--to took over, 68 if the leader refuses, and 69 if none leads. The client needs the
right to write the key NAME/bid, as the candidates do.

` + connectionHelp,
		Example: `switchover press-7/active
switchover press-7/active --to gateway-b --wait 1m`,
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
	to := output.Clean(switched.To.Name)
	if switched.To.Value == switched.From.Value {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s leads already\n", to)
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s leads; %s handed over, and none led for %v\n", to,
		output.Clean(switched.From.Name), switched.Gap.Round(100*time.Microsecond))
	return err
}
