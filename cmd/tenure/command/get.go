package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/transport"
)

func getCommand() *cobra.Command {
	var k keyFlags
	get := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key to standard output, as it is and without a newline. A
terminal gets a newline too, and control characters as \xNN, because it would obey
them. If there is no such key, the exit code is 69.

` + connectionHelp,
		Example: `get recipe
get recipe --json | jq -r .version`,
		Args: exactly("the key"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return k.withKey(cmd, arguments[0], func(ctx context.Context, client *transport.Client, key string) error {
				entry, err := client.Get(ctx, key)
				if err != nil {
					return err
				}
				return k.print(cmd, key, entry)
			})
		},
	}
	k.register(get.Flags(), "print the value in hexadecimal digits")
	return get
}

// print prints what get found.
func (k *keyFlags) print(cmd *cobra.Command, key string, entry transport.Entry) (err error) {
	w := cmd.OutOrStdout()
	if k.asJSON {
		if err := output.JSON(w, reportOf(key).with(entry)); err != nil {
			return err
		}
	}
	switch {
	case !entry.Exists:
		return k.missing(key)
	case k.asJSON:
	case k.hexValue:
		_, err = fmt.Fprintf(w, "%x\n", entry.Value)
	case output.IsTerminal(w):
		// Any client may have set the value. A terminal would obey the sequences in it: as ls does with
		// names, it is shown there, and is exact everywhere else.
		_, err = fmt.Fprintln(w, output.CleanLines(string(entry.Value)))
	default:
		_, err = w.Write(entry.Value)
	}
	return err
}
