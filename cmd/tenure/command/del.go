package command

import (
	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/transport"
)

func delCommand() *cobra.Command {
	return deleteCommand(&cobra.Command{
		Use:     "del KEY",
		Short:   "Delete a key",
		Long:    `Delete a key, and its protection by a fencing token unless the store is strict.`,
		Example: `del setpoint --fence "$TENURE_TOKEN"`,
	})
}

func vdelCommand() *cobra.Command {
	return deleteCommand(&cobra.Command{
		Use:     "vdel KEY VALUE",
		Short:   "Delete a key if it holds a value",
		Long:    `Delete a key if it holds the value; "-" is standard input. Otherwise the exit code is 105.`,
		Example: `vdel jobs/7 "$HOSTNAME"`,
	})
}

// deleteCommand returns cmd as a command that deletes a key: in any case, or if it holds the value of a second
// argument.
func deleteCommand(cmd *cobra.Command) *cobra.Command {
	var k keyFlags
	var options transport.DelOptions
	clientCommand(cmd, &k.connection, func(cmd *cobra.Command, client *transport.Client, arguments []string) error {
		key, deleted, err := arguments[0], false, error(nil)
		if len(arguments) == 1 {
			deleted, err = client.Del(cmd.Context(), key, options)
		} else if value, failure := readValue(cmd, arguments[1]); failure != nil {
			err = failure
		} else {
			deleted, err = client.VDel(cmd.Context(), key, value, options)
		}
		if err == nil && !deleted {
			err = k.missing(key)
		}
		return err
	})
	fenceFlag(cmd.Flags(), &options.FencingToken)
	return cmd
}
