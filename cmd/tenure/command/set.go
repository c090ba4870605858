package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

func setCommand() *cobra.Command {
	var k keyFlags
	var options transport.SetOptions
	var ifMissing, ifMissingOrEqual bool
	set := clientCommand(&cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Set a key, and print its new version",
		Long: `Set a key, and print its version. "-" is standard input; what begins with a dash goes
after --. After a request with --fence, the store refuses writes without a newer token.`,
		Example: "set jobs/7 \"$HOSTNAME\" --nx --px 30s\nset setpoint 21.5 --fence \"$TENURE_TOKEN\"",
	}, &k.connection, func(cmd *cobra.Command, client *transport.Client, arguments []string) error {
		value, err := readValue(cmd, arguments[1])
		if err != nil {
			return err
		}
		version, err := client.Set(cmd.Context(), arguments[0], value, options)
		switch {
		case errors.Is(err, transport.ErrConditionFailed):
			return fmt.Errorf("%w (the key has version %s)", err, version)
		case err != nil:
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), output.Clean(version.String()))
		return err
	})
	set.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case ifMissing && ifMissingOrEqual:
			return usagef("give --nx or --nex, not both")
		case cmd.Flags().Changed("px") && (options.TTL < time.Millisecond || options.TTL%time.Millisecond != 0):
			return usagef("--px %v must be whole milliseconds, at least one", options.TTL)
		case ifMissing:
			options.Condition = transport.IfMissing
		case ifMissingOrEqual:
			options.Condition = transport.IfMissingOrEqual
		}
		return nil
	}
	flags := set.Flags()
	fenceFlag(flags, &options.FencingToken)
	flags.BoolVar(&ifMissing, "nx", false, "set the key only if it does not exist")
	flags.BoolVar(&ifMissingOrEqual, "nex", false, "set the key only if it does not exist or holds VALUE already")
	flags.DurationVar(&options.TTL, "px", 0, "how long the key lives, like 30s; by default it does not expire")
	flags.BoolVar(&options.Persist, "persist", false, "ask a store of Azure IoT Operations to keep the key on disk")
	return set
}

// fenceFlag adds the flag for a fencing token.
func fenceFlag(flags *pflag.FlagSet, at *hlc.Token) {
	const usage = `fencing token, as "$TENURE_TOKEN" in the child of run, against a newer one`
	flags.Func("fence", usage, func(text string) (err error) {
		if *at, err = hlc.ParseToken(text); err != nil {
			err = errors.New("want a token such as 1795363097601:1:StateStore")
		}
		return err
	})
	settings.NotEmpty(flags, "fence") // of an unset variable: the request must not go unprotected
}
