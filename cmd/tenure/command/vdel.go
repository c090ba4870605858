package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/transport"
)

func vdelCommand() *cobra.Command {
	var k keyFlags
	vdel := &cobra.Command{
		Use:   "vdel KEY VALUE",
		Short: "Delete a key if it holds a value",
		Long: `Delete a key if it holds the value; "-" is what standard input has. If the key
holds another value or does not exist, nothing changes and the exit code is 69.

` + connectionHelp,
		Example: `vdel jobs/7 "$HOSTNAME"`,
		Args:    twoArguments("the key", "the value that the key must hold; - for standard input"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			key, value, token, err := k.arguments(cmd, arguments)
			if err != nil {
				return err
			}
			return k.delete(cmd, key, func(ctx context.Context, client *transport.Client) (bool, error) {
				return client.VDel(ctx, key, value, transport.DelOptions{FencingToken: token})
			})
		},
	}
	explainDashes(vdel, "a value that begins with a dash", "KEY -- VALUE")
	k.register(vdel.Flags(), "VALUE, or standard input, is in hexadecimal digits")
	k.registerFence(vdel.Flags())
	return vdel
}
