// Package command is what the commands tenure and tenure-cluster have in common: nearly all of
// them. It exists for these two, and is no interface to build on.
package command

import (
	"context"
	"fmt"
	"log/slog"
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

// New returns the command of this name, with all that a store on one machine needs. serve and
// attach are what replicates the stores of these two commands; nil for none.
func New(name string, serve, attach Replication) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         "Leases, fencing tokens and a state store over MQTT 5",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(serve), attachCommand(attach), passwordCommand(),
		checkCommand(), backupCommand(), restoreCommand(), exportCommand())
	return root
}

// Run runs a command that goes on until it is interrupted. It logs without waiting for the reader
// of the log, and survives the end of its terminal. With verbose, the log has all levels.
func Run(cmd *cobra.Command, verbose bool, run func(ctx context.Context, logger *slog.Logger) error) error {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelDebug
	}
	process, stop := startProcess(cmd, level)
	defer stop()
	return process.run(cmd.Context(), nil, func(ctx context.Context) error { return run(ctx, process.logger) })
}

// Directory returns where a store keeps its data: dir, or the default if that is empty.
func Directory(dir string) (string, error) {
	return (&dataFlags{dir: dir}).directory(serveFolder)
}
