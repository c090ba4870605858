package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/server/journal"
)

func backupCommand() *cobra.Command {
	task := &dataTask{
		doing: "copying",
		done:  "a sound backup",
		left:  func(arguments []string) string { return "there is no " + arguments[1] },
		do: func(ctx context.Context, arguments []string, progress journal.Progress) (journal.Report, error) {
			report, err := journal.Backup(ctx, arguments[0], arguments[1], progress)
			if err != nil && inFile(arguments[0]) {
				err = usage(err) // only a directory can be backed up
			}
			return report, err
		},
	}
	return task.register(&cobra.Command{
		Use:   "backup DIR FILE",
		Short: "Back up the data of a store, which may be running",
		Long: `Write a copy of the data of a store to a new file, as it was at one moment. DIR
is the directory that the store names when it starts. If a store uses it, it
goes on answering meanwhile. Run the command as the user of the store or as
root.

The copy is checked before it gets the name FILE, and an existing file is never
replaced. It holds the values of all keys; only its owner may read it.`,
		Example: `backup /var/lib/tenure /backups/tenure-$(date +%F)`,
		Args:    exactly("the directory of the data", "the file for the backup"),
	})
}
