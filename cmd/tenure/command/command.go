// Package command is what the commands tenure and tenure-cluster have in common: nearly all of
// them. It exists for these two, and is no interface to build on.
package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
)

// Main runs a command with the arguments of the process until it ends or SIGINT or SIGTERM
// comes. After an error it says why on standard error and exits with status 1.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		stderr := logwriter.New(os.Stderr, logQueue) // its reader may have stopped
		fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
		stderr.Close(logFlush)
		stop()
		os.Exit(1)
	}
}

// New returns the command of this name, with all that a store on one machine needs, and with
// replication unless that is nil.
func New(name string, replicated *Replicated) *cobra.Command {
	if replicated == nil {
		replicated = new(Replicated)
	}
	root := &cobra.Command{
		Use:           name,
		Short:         "Leases, fencing tokens and a state store over MQTT 5",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(replicated.Serve), attachCommand(replicated.Attach), passwordCommand(),
		checkCommand(), backupCommand(), restoreCommand(), exportCommand())
	return root
}
