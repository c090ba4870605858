package command

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/server/journal"
)

func checkCommand() *cobra.Command {
	return dataCommand(&cobra.Command{
		Use:     "check PATH",
		Short:   "Check the data of a store, and say what it holds",
		Long:    "Check all data in a directory, which a store may use, or in the file of a backup.",
		Example: "check /var/lib/tenure\ncheck --json /backups/tenure-monday | jq .keys",
	}, "sound", func(ctx context.Context, path, _ string) (journal.Report, error) { return journal.Check(ctx, path) })
}

func backupCommand() *cobra.Command {
	return dataCommand(&cobra.Command{
		Use:     "backup DIR FILE",
		Short:   "Back up the data of a store, which may be running",
		Long:    "Write a copy of the data in a directory to a new file, as the user of the store or as root.",
		Example: `backup /var/lib/tenure /backups/tenure-$(date +%F)`,
	}, "a sound backup", journal.Backup)
}

func restoreCommand() *cobra.Command {
	return dataCommand(&cobra.Command{
		Use:   "restore FILE DIR",
		Short: "Restore a backup into a directory without data",
		Long: `Make the data of a store from a backup. What changed later is lost, and tenures that clients
still have end: start the store with --hold-off and the longest TTL in use.`,
		Example: `restore /backups/tenure-monday /var/lib/tenure`,
	}, "restored", journal.RestoreBackup)
}

func exportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export PATH",
		Short: "Print the data of a store as lines of JSON",
		Long: `Print all records of a store, one JSON object on each line: keys, fences of keys that are
gone, remembered replies, the identity, and the bound of its versions.`,
		Example: `export /var/lib/tenure | jq 'select(.kind == "key")'`,
		Args:    Arguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return journal.Export(cmd.Context(), arguments[0], output.Printable(cmd.OutOrStdout()))
		},
	}
}

// dataCommand returns cmd as a command that does something with the data of a store, and prints a report that
// begins with what the data is now.
func dataCommand(
	cmd *cobra.Command, done string, do func(ctx context.Context, from, to string) (journal.Report, error),
) *cobra.Command {
	var asJSON bool
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	cmd.Args = Arguments
	cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
		report, err := do(cmd.Context(), arguments[0], arguments[len(arguments)-1])
		if err != nil {
			return err
		}
		for _, warning := range report.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: warning: %s\n", cmd.Root().Name(), warning)
		}
		if asJSON {
			return output.JSON(cmd.OutOrStdout(), report)
		}
		headline := report.File + " is " + done
		if report.Online {
			headline += " (a store is running on it)"
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		_, err = fmt.Fprintf(table, "%s\n  keys\t%d\n  fences of keys that are gone\t%d\n"+
			"  remembered replies\t%d\n  changes of leases\t%d\n  bytes of the file\t%d\n"+
			"  bytes of the data\t%d\n  identity of the data\t%s\n  bound of the versions\t%s\n",
			headline, report.Keys, report.Fences, report.Replies, report.Changes, report.Bytes, report.LiveBytes,
			report.Identity, report.Bound)
		return errors.Join(err, table.Flush())
	}
	return cmd
}
