package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/server/journal"
)

func checkCommand() *cobra.Command {
	task := &dataTask{
		doing: "checking",
		done:  "sound",
		left:  func([]string) string { return "nothing was changed" },
		do: func(ctx context.Context, arguments []string, progress journal.Progress) (journal.Report, error) {
			return journal.Check(ctx, arguments[0], progress)
		},
	}
	return task.register(&cobra.Command{
		Use:   "check DIR",
		Short: "Check the data of a store, and say what it holds",
		Long: `Read the data of a store from beginning to end, and check all bytes and each
record. DIR is the directory that the store names when it starts, or the file of
a backup. Nothing is changed, and a store that uses the directory goes on
answering.

The exit code is 1 if the data is damaged or cannot be read, and 2 if there is
nothing at DIR. Standard error says why and what to do.`,
		Example: `check /var/lib/tenure
check /backups/tenure-monday
check --json /var/lib/tenure | jq .keys`,
		Args: exactly("the directory of the data, or the file of a backup"),
	})
}
