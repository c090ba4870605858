package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/server/journal"
)

func restoreCommand() *cobra.Command {
	task := &dataTask{
		doing: "restoring",
		done:  "restored",
		left:  func(arguments []string) string { return "no data was left in " + arguments[1] },
		do: func(ctx context.Context, arguments []string, progress journal.Progress) (journal.Report, error) {
			return journal.RestoreBackup(ctx, arguments[0], arguments[1], progress)
		},
	}
	return task.register(&cobra.Command{
		Use:   "restore FILE DIR",
		Short: "Restore a backup into a directory without data",
		Long: `Make the data of a store from the file of a backup. DIR must have no data; it is
made if it is missing.

What changed after the backup is lost, so the data gets a new identity: tenures
that clients still have end with their next request. No version and no fencing
token is issued again, if the clock of this machine is right within a minute.
Leases that were granted after the backup are not in it: start the store with
--hold-off and the longest TTL in use, or when that has passed since the lost
store answered for the last time.`,
		Example: `restore /backups/tenure-monday /var/lib/tenure`,
		Args:    exactly("the file of a backup", "the directory for the data"),
	})
}
