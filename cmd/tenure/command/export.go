package command

import (
	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/server/journal"
)

func exportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export DIR",
		Short: "Print the data of a store as lines of JSON",
		Long: `Print all records of a store to standard output, one JSON object on each line.
DIR is the directory that the store names when it starts, or the file of a
backup. A store that uses the directory goes on answering. What was changed last
comes last.

The field "kind" says what a line is about: key, fence (of a key that is gone),
reply (remembered, for requests that are delivered again), identity, or bound:
no version above it was issued. Before the first version it is 0:0:. Keys,
values and client ids that are not valid UTF-8 are in base64, in keyBase64,
valueBase64 and clientBase64. The output holds the values of all keys.`,
		Example: `export /var/lib/tenure | jq 'select(.kind == "key")'`,
		Args:    exactly("the directory of the data, or the file of a backup"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := refuseMembers(arguments); err != nil {
				return err
			}
			progress, done := showProgress(cmd, "exporting")
			defer done()
			err := journal.Export(cmd.Context(), arguments[0], output.Printable(cmd.OutOrStdout()), progress)
			return missingSource(orInterrupted(cmd, err, "lines are missing"))
		},
	}
}
