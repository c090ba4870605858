package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
	"github.com/tenurelock/tenure/server/journal"
)

const (
	// jsonUsage is the help of --json.
	jsonUsage = "print the report as JSON"
	// progressInterval is how often a terminal shows how far a command is.
	progressInterval = 200 * time.Millisecond
)

func checkCommand() *cobra.Command {
	var asJSON bool
	check := &cobra.Command{
		Use:   "check DIR",
		Short: "Check the data of a store, and say what it holds",
		Long: `Read the data of a store from beginning to end, and check all bytes and each
record. DIR is the directory that the store names when it starts, or the file of
a backup. Nothing is changed, and a store that uses the directory goes on
answering.

The exit status is 1 if the data is damaged or cannot be read, and 2 if there is
nothing at DIR. Standard error says why and what to do.`,
		Example: `  tenure check /var/lib/tenure
  tenure check /backups/tenure-monday
  tenure check --json /var/lib/tenure | jq .keys`,
		Args: exactly("the directory of the data, or the file of a backup"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			progress, done := showProgress(cmd, "checking")
			report, err := journal.Check(cmd.Context(), arguments[0], progress)
			done()
			if err != nil {
				return missingSource(arguments[0], orInterrupted(cmd, err, "nothing was changed"))
			}
			return printReport(cmd, asJSON, report, report.File+" is sound")
		},
	}
	check.Flags().BoolVar(&asJSON, "json", false, jsonUsage)
	return check
}

func backupCommand() *cobra.Command {
	var asJSON bool
	backup := &cobra.Command{
		Use:   "backup DIR FILE",
		Short: "Back up the data of a store, which may be running",
		Long: `Write a copy of the data of a store to a new file, as it was at one moment. DIR
is the directory that the store names when it starts. If a store uses it, it
goes on answering meanwhile. Run the command as the user of the store or as
root.

The copy is checked before it gets the name FILE, and an existing file is never
replaced. It holds the values of all keys; only its owner may read it.`,
		Example: `  tenure backup /var/lib/tenure /backups/tenure-$(date +%F)`,
		Args:    exactly("the directory of the data", "the file for the backup"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			progress, done := showProgress(cmd, "copying")
			report, err := journal.Backup(cmd.Context(), arguments[0], arguments[1], progress)
			done()
			if err != nil && inFile(arguments[0]) {
				return usage(err) // only a directory can be backed up
			}
			if err != nil {
				return missingSource(arguments[0], orInterrupted(cmd, err, "there is no "+arguments[1]))
			}
			return printReport(cmd, asJSON, report, report.File+" is a sound backup")
		},
	}
	backup.Flags().BoolVar(&asJSON, "json", false, jsonUsage)
	return backup
}

func restoreCommand() *cobra.Command {
	var asJSON bool
	restore := &cobra.Command{
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
		Example: `  tenure restore /backups/tenure-monday /var/lib/tenure`,
		Args:    exactly("the file of a backup", "the directory for the data"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			progress, done := showProgress(cmd, "restoring")
			report, err := journal.RestoreBackup(cmd.Context(), arguments[0], arguments[1], progress)
			done()
			if err != nil {
				return missingSource(arguments[0], orInterrupted(cmd, err, "nothing was left in "+arguments[1]))
			}
			return printReport(cmd, asJSON, report, report.File+" is restored")
		},
	}
	restore.Flags().BoolVar(&asJSON, "json", false, jsonUsage)
	return restore
}

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
		Example: `  tenure export /var/lib/tenure | jq -r 'select(.kind == "key") | .key'
  (umask 077; tenure export /var/lib/tenure > tenure.jsonl)`,
		Args: exactly("the directory of the data, or the file of a backup"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			progress, done := showProgress(cmd, "exporting")
			defer done()
			err := journal.Export(cmd.Context(), arguments[0], output.Printable(cmd.OutOrStdout()), progress)
			return missingSource(arguments[0], orInterrupted(cmd, err, "lines are missing"))
		},
	}
}

// exactly accepts one argument for each name, and says which is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		switch {
		case len(arguments) < len(names):
			return fmt.Errorf("give %s: tenure %s", names[len(arguments)], cmd.Use)
		case len(arguments) > len(names):
			return fmt.Errorf("%q is one argument too many: tenure %s", arguments[len(names)], cmd.Use)
		}
		for i, argument := range arguments {
			if argument == "" {
				return fmt.Errorf("an argument is empty: give %s: tenure %s", names[i], cmd.Use)
			}
		}
		return nil
	}
}

// missingSource marks err as bad usage if there is nothing at the path from which a command was to read.
func missingSource(path string, err error) error {
	if _, missing := os.Stat(path); err != nil && errors.Is(missing, fs.ErrNotExist) {
		return usage(err)
	}
	return err
}

// orInterrupted returns err, or that a signal has ended the command and how things are left.
func orInterrupted(cmd *cobra.Command, err error, left string) error {
	if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
		return errors.New("interrupted; " + left)
	}
	return err
}

// showProgress returns a function that shows on standard error how far a command is, if that is a
// terminal. done removes the line; the caller calls it before it prints anything else.
func showProgress(cmd *cobra.Command, doing string) (progress journal.Progress, done func()) {
	out := terminal.On(cmd.ErrOrStderr())
	if !out.IsTerminal() {
		return nil, func() {}
	}
	line := out.Progress()
	return percentage(line.Show, doing), line.Clear
}

// percentage returns a function that shows a share now and then. A short command shows nothing.
func percentage(show func(text string), doing string) journal.Progress {
	next := time.Now().Add(progressInterval)
	return func(part, total uint64) {
		if now := time.Now(); total > 0 && now.After(next) {
			next = now.Add(progressInterval)
			show(fmt.Sprintf("%s: %d%%", doing, min(100, uint64(100*float64(part)/float64(total)))))
		}
	}
}

// printReport prints what is in a journal or a backup, and warnings on standard error.
func printReport(cmd *cobra.Command, asJSON bool, report journal.Report, headline string) error {
	w := cmd.OutOrStdout()
	for _, warning := range report.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: warning: %s\n", cmd.Root().Name(), warning)
	}
	if asJSON {
		return output.JSON(w, report)
	}
	if report.Online {
		headline += " (a store is running on it)"
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, headline)
	for _, row := range []struct {
		name  string
		value any
	}{
		{"keys", report.Keys},
		{"fences of keys that are gone", report.Fences},
		{"remembered replies", report.Replies},
		{"changes of leases", report.Changes},
		{"bytes of the file", report.Bytes},
		{"bytes of the data", report.LiveBytes},
		{"identity of the data", report.Identity},
		{"bound of the versions", report.Bound},
	} {
		_, failed := fmt.Fprintf(table, "  %s\t%v\n", row.name, row.value)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, table.Flush())
}
