package command

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/transport"
)

func watchCommand() *cobra.Command {
	var k keyFlags
	watch := clientCommand(&cobra.Command{
		Use:   "watch KEY",
		Short: "Print a key and then each change of it, until interrupted",
		Long: `Print what a key holds and then each change, a line each: the time, "set" and the value
as a quoted string, or "missing". "missed" says that changes may lie before the line.`,
		Example: `watch recipe --json | jq --unbuffered .value`,
	}, &k.connection, k.watch)
	k.register(watch.Flags())
	return watch
}

// watch prints changes until it is interrupted.
func (k *keyFlags) watch(cmd *cobra.Command, client *transport.Client, arguments []string) error {
	if _, err := client.Get(cmd.Context(), arguments[0]); err != nil {
		return err // a watch would wait for a store that is not there
	}
	watch, err := client.Watch(arguments[0])
	if err != nil {
		return err
	}
	defer watch.Close()
	for {
		select {
		case <-cmd.Context().Done():
			return nil // it was to go on until then
		case change, open := <-watch.Changes():
			if !open {
				return watch.Err()
			}
			if err := k.printChange(cmd.OutOrStdout(), arguments[0], change); err != nil {
				return err
			}
		}
	}
}

func (k *keyFlags) printChange(w io.Writer, key string, change transport.Change) error {
	now := time.Now().Format(timeLayout)
	if k.asJSON {
		report := reportOf(key, change.Entry)
		report.Time, report.Missed = now, change.Missed
		return output.JSON(w, report)
	}
	line := now + " missing"
	if change.Exists {
		line = fmt.Sprintf("%s set %q", now, change.Value)
	}
	if change.Missed {
		line += " (missed: there may have been other changes before)"
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
