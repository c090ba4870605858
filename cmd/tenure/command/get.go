package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

func getCommand() *cobra.Command {
	var k keyFlags
	get := clientCommand(&cobra.Command{
		Use:     "get KEY",
		Short:   "Print the value of a key",
		Long:    "Print the value of a key as it is; to a terminal, control characters as \\xNN.",
		Example: "get recipe\nget recipe --json | jq -r .version",
	}, &k.connection, func(cmd *cobra.Command, client *transport.Client, arguments []string) error {
		entry, err := client.Get(cmd.Context(), arguments[0])
		if err != nil {
			return err
		}
		return k.print(cmd.OutOrStdout(), arguments[0], entry)
	})
	k.register(get.Flags())
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
	fence  string // of those that write
}

// register adds the flag that all of these commands have.
func (k *keyFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&k.asJSON, "json", false, "print JSON; what is not UTF-8 is in base64, in keyBase64 and valueBase64")
}

// missing returns the error for a key that does not exist. With --json the output says so already.
func (k *keyFlags) missing(key string) error {
	if k.asJSON {
		return exitWith(exitMissing, nil)
	}
	return exitWith(exitMissing, fmt.Errorf("the key %q does not exist", key))
}

// An entryReport is what the get and watch print as JSON.
type entryReport struct {
	Time        string  `json:"time,omitempty"` // of watch
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"keyBase64,omitempty"`
	Exists      bool    `json:"exists"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"valueBase64,omitempty"`
	Version     string  `json:"version,omitempty"`
	Missed      bool    `json:"missed,omitempty"` // of watch
}

// reportOf returns a report about what a key holds.
func reportOf(key string, entry transport.Entry) entryReport {
	r := entryReport{Exists: entry.Exists}
	r.Key, r.KeyBase64 = output.Text(key)
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
