package command

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/server/journal"
)

// progressInterval is how often a terminal shows how far a command is.
const progressInterval = 200 * time.Millisecond

// A dataTask is what check, backup and restore do with the data of a store.
type dataTask struct {
	doing  string // as a terminal shows it
	done   string // follows the name of the file in the first line of the report
	left   func(arguments []string) string
	do     func(ctx context.Context, arguments []string, progress journal.Progress) (journal.Report, error)
	asJSON bool
}

// register makes the task what a command runs.
func (d *dataTask) register(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print the report as JSON")
	cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
		if err := refuseMembers(arguments); err != nil {
			return err
		}
		progress, done := showProgress(cmd, d.doing)
		report, err := d.do(cmd.Context(), arguments, progress)
		done()
		if err != nil {
			return missingSource(orInterrupted(cmd, err, d.left(arguments)))
		}
		return printReport(cmd, d.asJSON, report, report.File+" is "+d.done)
	}
	return cmd
}

// refuseMembers refuses directories with a member of etcd: these commands are for the data of a store on one
// machine.
func refuseMembers(dirs []string) error {
	for _, dir := range dirs {
		if hasMember(dir) {
			return fmt.Errorf("%s has a member of etcd, and this command is for the data of a store on one machine. The other members have the data too: "+
				"a member that is lost is replaced (tenure-cluster replace), and none is restored. docs/pair.md says under \"Backups\" what protects the data", dir)
		}
	}
	return nil
}

// missingSource marks err as bad usage if there is no data where a command was to read it.
func missingSource(err error) error {
	if errors.Is(err, journal.ErrNoData) {
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
	w := cmd.ErrOrStderr()
	if !output.IsTerminal(w) {
		return nil, func() {}
	}
	return percentage(func(text string) { fmt.Fprint(w, "\r"+text+"\x1b[K") }, doing), func() { fmt.Fprint(w, "\r\x1b[K") }
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
	_, err := fmt.Fprintf(table, "%s\n  keys\t%d\n  fences of keys that are gone\t%d\n"+
		"  remembered replies\t%d\n  changes of leases\t%d\n  bytes of the file\t%d\n"+
		"  bytes of the data\t%d\n  identity of the data\t%s\n  bound of the versions\t%s\n",
		headline, report.Keys, report.Fences, report.Replies, report.Changes, report.Bytes, report.LiveBytes,
		report.Identity, report.Bound)
	return errors.Join(err, table.Flush())
}
