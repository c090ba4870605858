package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/cmd/tenure/command"
)

func witnessCommand() *cobra.Command {
	flags := memberFlags{Options: member.Options{Witness: true}}
	var dir string
	witness := &cobra.Command{
		Use:   "witness",
		Short: "Run a member of etcd that serves no clients, until interrupted",
		Long: `Run a member of etcd and nothing else, until SIGINT or SIGTERM. A pair of
servers needs it as the third member: docs/pair.md shows it.`,
		Example: "witness --member c --cluster a=https://a:2380,b=https://b:2380,c=https://c:2380 " +
			"--peer-ca ca.pem --peer-cert c.pem --peer-key c.key",
		Args: command.Arguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := command.Directory(dir)
			if err != nil {
				return err
			}
			return command.Run(cmd, func(ctx context.Context, logger *slog.Logger, flush func(), ready func(string)) error {
				m, where, err := flags.start(dir, logger, flush)
				if err != nil {
					return err
				}
				defer m.Close()
				fmt.Fprintf(cmd.OutOrStdout(), "started member %s with data in %s\n", flags.Name, where)
				for working := m.Ready(); ; working = nil {
					select {
					case <-working:
						ready(fmt.Sprintf("running member %s with data in %s", flags.Name, where))
					case <-m.Done():
						return m.Err()
					case <-ctx.Done():
						m.Close()
						fmt.Fprintln(cmd.OutOrStdout(), "stopped")
						return nil
					}
				}
			})
		},
	}
	flags.register(witness.Flags())
	command.DirectoryFlag(witness.Flags(), &dir, "directory for the data, made if it is missing")
	return witness
}

// replaceTimeout bounds replace: etcd may have to elect a leader first.
const replaceTimeout = 30 * time.Second

func replaceCommand() *cobra.Command {
	var dir string
	var yes bool
	replace := &cobra.Command{
		Use:   "replace NAME URL",
		Short: "Replace a member of etcd that has lost its machine or disk",
		Long: `Take the member NAME out of its cluster, and announce a new one of that name
that its peers reach at URL. Run it on the machine of another member, which
runs, with the --data of that one and as its user. A majority of the members
must run. Replace one member after the other.

It prints how to start the new member, with an empty --data.`,
		Example: `replace b https://b:2380 --data /var/lib/tenure`,
		Args:    command.Arguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			dir, err := command.Directory(dir)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), replaceTimeout,
				fmt.Errorf("etcd did not do it within %v; a majority of its members must run", replaceTimeout))
			defer cancel()
			members, err := member.Replace(ctx, memberDirectory(dir), arguments[0], arguments[1], yes)
			switch {
			case err != nil && ctx.Err() != nil:
				return fmt.Errorf("%w: %w", err, context.Cause(ctx))
			case err != nil:
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "start the new member with an empty --data, with its other flags as before, and "+
				"with\n--member %s --join --cluster %s\n", arguments[0], members)
			return nil
		},
	}
	command.DirectoryFlag(replace.Flags(), &dir, "directory of --data of a member that runs on this machine")
	replace.Flags().BoolVar(&yes, "yes", false, "replace the member even if it is alive")
	return replace
}
