package command

import (
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
	cmd := clientCommand(&cobra.Command{
		Use:   "switchover NAME",
		Short: "Make the leader of an election hand over, to a candidate by name or to any other",
		Long: `Ask the leader of an election to drain and hand over, to the candidate of --to or to any
other one that is ready, and print for how long none led. The exit code is 65 if none
is ready within --wait, 64 if another one than --to took over, 68 if the leader
refuses, and 69 if none leads. The client needs the right to write the key NAME/bid.`,
		Example: "switchover press-7/active --to gateway-b",
	}, &s.connection, s.run)
	flags := cmd.Flags()
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

func (s *switchoverFlags) run(cmd *cobra.Command, client *transport.Client, arguments []string) error {
	waiting, cancel := within(cmd.Context(), "wait", s.wait)
	defer cancel()
	switched, err := election.Switchover(waiting, client, arguments[0], s.to)
	switch {
	case errors.Is(err, election.ErrNoLeader) && waiting.Err() == nil:
		return exitWith(exitMissing, err)
	case errors.Is(err, election.ErrSwitchoverRefused):
		return exitWith(exitRefused, err)
	case errors.Is(err, election.ErrOtherLeads):
		return exitWith(exitHeld, err)
	case errors.As(err, new(*timeoutError)):
		return exitWith(exitTimeout, err)
	case err != nil:
		return err
	case s.asJSON:
		report := switchoverReport{holderReport: reportHolder(arguments[0], switched.To)}
		report.From, report.FromBase64 = output.Text(switched.From.Name)
		report.Gap.Duration = switched.Gap
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
