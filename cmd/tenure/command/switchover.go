package command

import (
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
	to   string
	wait time.Duration
}

func switchoverCommand() *cobra.Command {
	var s switchoverFlags
	cmd := clientCommand(&cobra.Command{
		Use:   "switchover NAME",
		Short: "Make the leader of an election hand over, to a candidate by name or to any other",
		Long: `Ask the leader of an election to drain and hand over to a candidate that is ready, and print
for how long none led. The client needs the right to write the key NAME/bid.`,
		Example: "switchover press-7/active --to gateway-b",
	}, &s.connection, s.run)
	flags := cmd.Flags()
	flags.StringVar(&s.to, "to", "", "name of the holder that is to lead; default: any other candidate")
	flags.DurationVar(&s.wait, "wait", 30*time.Second, "how long to wait until the other candidate leads")
	settings.CommandLineOnly(flags, "to")
	return cmd
}

func (s *switchoverFlags) run(cmd *cobra.Command, client *transport.Client, arguments []string) error {
	waiting, cancel := within(cmd.Context(), "wait", s.wait)
	defer cancel()
	if s.to != "" {
		defer time.AfterFunc(2*time.Second, func() {
			fmt.Fprintf(cmd.ErrOrStderr(), "%q does not lead yet: does a candidate with that --holder stand by? "+
				"waiting until --wait %v\n", s.to, s.wait)
		}).Stop()
	}
	switched, err := election.Switchover(waiting, client, arguments[0], s.to)
	if err != nil {
		return err
	}
	text := output.Clean(switched.To.Name) + " leads already"
	if switched.To.Value != switched.From.Value {
		text = fmt.Sprintf("%s leads; %s handed over, and none led for %v", output.Clean(switched.To.Name),
			output.Clean(switched.From.Name), switched.Gap.Round(100*time.Microsecond))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
	return err
}
