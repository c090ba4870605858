package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

func getCommand() *cobra.Command {
	var k keyFlags
	var watch bool
	get := clientCommand(&cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key, and with --watch each change",
		Long: `Print the value of a key as it is; to a terminal, control characters as \xNN. --watch goes
on until it is interrupted, with a line for the value and each change: the time, "set" and
the value as a quoted string, or "missing". "missed" says that changes may lie before.`,
		Example: "get recipe\nget recipe --json | jq -r .version\nget recipe --json --watch | jq --unbuffered .value",
	}, &k.connection, func(cmd *cobra.Command, client *transport.Client, arguments []string) error {
		entry, err := client.Get(cmd.Context(), arguments[0]) // a watch would wait for a store that is not there
		switch {
		case err != nil:
			return err
		case watch:
			return k.watch(cmd, client, arguments[0])
		}
		return k.print(cmd.OutOrStdout(), arguments[0], entry)
	})
	get.Flags().BoolVar(&watch, "watch", false, "go on, and print each change")
	get.Flags().BoolVar(&k.asJSON, "json", false, "print JSON; a value that is not UTF-8 is in base64, in valueBase64")
	return get
}

// print prints what get found.
func (k *keyFlags) print(w io.Writer, key string, entry transport.Entry) (err error) {
	if k.asJSON {
		err = output.JSON(w, reportOf(key, entry))
	} else if entry.Exists && output.IsTerminal(w) {
		// Any client may have set the value. A terminal would obey the sequences in it: as ls does with
		// names, it is shown there, and is exact everywhere else.
		_, err = fmt.Fprintln(w, output.CleanLines(string(entry.Value)))
	} else {
		_, err = w.Write(entry.Value)
	}
	if err == nil && !entry.Exists {
		err = k.missing(key)
	}
	return err
}

// keyFlags are the flags of the commands for one key.
type keyFlags struct {
	connection
	asJSON bool
}

// missing returns the error for a key that does not exist. With --json the output says so already.
func (k *keyFlags) missing(key string) error {
	if k.asJSON {
		return exitWith(exitMissing, nil)
	}
	return exitWith(exitMissing, fmt.Errorf("the key %q does not exist", key))
}

// An entryReport is what get prints as JSON.
type entryReport struct {
	Time        string  `json:"time,omitempty"` // of --watch
	Key         string  `json:"key"`
	Exists      bool    `json:"exists"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"valueBase64,omitempty"`
	Version     string  `json:"version,omitempty"`
	Missed      bool    `json:"missed,omitempty"` // of --watch
}

// reportOf returns a report about what a key holds.
func reportOf(key string, entry transport.Entry) entryReport {
	r := entryReport{Key: key, Exists: entry.Exists}
	if entry.Exists {
		r.Value, r.ValueBase64 = output.Text(entry.Value)
		r.Version = versionOf(entry.Version)
	}
	return r
}

// versionOf returns the text of a version, and nothing if the store sent none.
func versionOf(version hlc.Timestamp) string {
	if version.IsZero() {
		return ""
	}
	return output.Clean(version.String()) // the store chose the name of its node
}

// watch prints changes until it is interrupted.
func (k *keyFlags) watch(cmd *cobra.Command, client *transport.Client, key string) error {
	watch, err := client.Watch(key)
	if err != nil {
		return err
	}
	defer context.AfterFunc(cmd.Context(), watch.Close)() // it was to go on until then
	for change := range watch.Changes() {
		if err := k.printChange(cmd.OutOrStdout(), key, change); err != nil {
			return err
		}
	}
	if cmd.Context().Err() != nil {
		return nil
	}
	return watch.Err()
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
