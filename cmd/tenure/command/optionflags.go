package command

import (
	"strings"

	"github.com/spf13/cobra"
)

// optionFlags are the options that packages server and attach may refuse, each followed by its
// flag, as for NameFlags. Other flags of limits refuse what makes no sense themselves.
var optionFlags = []string{
	"Options.MaxMemory", "--max-memory",
	"Options.MaxClients", "--max-clients",
	"Options.MaxPacketSize", "--max-packet-size",
	"Options.PasswordChecks", "--password-checks",
	"Options.MaxUnauthenticatedPerAddress", "--max-unauthenticated-per-address",
	"Options.MaxUnauthenticated", "--max-unauthenticated",
	"Options.ProbeMessages", "--probe-messages",
	"Options.Store.DedupWindow", "--dedup-window",
	"Options.Limits.SessionMessages", "--max-session-messages",
	"Options.Limits.Subscriptions", "--max-subscriptions",
	"Options.Limits.SessionsPerUser", "--max-sessions-per-user",
	"Options.Limits.RetainedMessages", "--max-retained",
}

// NameFlags makes the errors of the commands below root name flags in place of the options of
// packages. optionFlags has the options as errors name them, each followed by the flag that sets
// it; where one begins another, the longer one comes first.
func NameFlags(root *cobra.Command, optionFlags ...string) {
	replacer := strings.NewReplacer(optionFlags...)
	for _, command := range root.Commands() {
		run := command.RunE
		if run == nil {
			continue // a topic of help
		}
		command.RunE = func(cmd *cobra.Command, arguments []string) error {
			err := run(cmd, arguments)
			if err == nil {
				return nil
			}
			text := err.Error()
			if named := replacer.Replace(text); named != text {
				return usage(&flagError{err, named}) // a package refuses what a flag says
			}
			return err
		}
	}
}

// flagError is an error that names flags where its cause names options of a package.
type flagError struct {
	error
	text string
}

// Error returns the text with flags.
func (e *flagError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *flagError) Unwrap() error { return e.error }
