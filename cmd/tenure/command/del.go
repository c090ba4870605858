package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/transport"
)

func delCommand() *cobra.Command {
	var k keyFlags
	del := &cobra.Command{
		Use:   "del KEY",
		Short: "Delete a key",
		Long: `Delete a key. If there is no such key, the exit code is 69.

If the key was protected by a fencing token, its protection goes with it, unless
the store is strict. To set an empty value keeps it. To take a lease from its
holder, use release, which cannot hit a later holder.

` + connectionHelp,
		Example: `del setpoint --fence "$TENURE_TOKEN"`,
		Args:    exactly("the key"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			key, _, token, err := k.arguments(cmd, arguments)
			if err != nil {
				return err
			}
			return k.delete(cmd, key, func(ctx context.Context, client *transport.Client) (bool, error) {
				return client.Del(ctx, key, transport.DelOptions{FencingToken: token})
			})
		},
	}
	k.register(del.Flags(), "")
	k.registerFence(del.Flags())
	return del
}
