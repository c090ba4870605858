// Package command is what the commands tenure and tenure-cluster have in common: nearly all of
// them. It exists for these two, and is no interface to build on.
package command

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
)

// Main runs a command with the arguments of the process until it ends or SIGINT or SIGTERM
// comes. After an error it says why on standard error and exits with status 1.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		stderr := logwriter.New(os.Stderr, logQueue) // its reader may have stopped
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), withName(root.Name(), err.Error()))
		stderr.Close(logFlush)
		stop()
		os.Exit(1)
	}
}

// New returns the command of this name, with all that a store on one machine needs. serve and
// attach replicate the stores of the commands serve and attach; nil means that they cannot.
func New(name string, serve, attach Replication) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         "Leases, fencing tokens and a state store over MQTT 5",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(serve), attachCommand(attach), passwordCommand(),
		checkCommand(), backupCommand(), restoreCommand(), exportCommand())
	NameFlags(root, optionFlags...)
	for _, cmd := range root.Commands() {
		cmd.Long, cmd.Example = withName(name, cmd.Long), withName(name, cmd.Example)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = withName(name, f.Usage) })
	}
	return root
}

// named matches a command in a text: all texts are written for the program tenure.
var named = regexp.MustCompile(`\btenure (serve|attach|password|check|backup|restore|export)\b`)

// withName returns text with the commands of the program with this name. A machine may have
// tenure-cluster only.
func withName(name, text string) string { return named.ReplaceAllString(text, name+" $1") }

// Run runs a command that goes on until it is interrupted. It logs without waiting for the reader
// of the log, and survives the end of its terminal. With verbose, the log has all levels.
func Run(cmd *cobra.Command, verbose bool, run func(ctx context.Context, logger *slog.Logger) error) error {
	process, stop := startProcess(cmd, slog.LevelWarn, verbose)
	defer stop()
	return process.run(cmd.Context(), nil, func(ctx context.Context) error { return run(ctx, process.logger) })
}

// DirectoryFlag adds the flag --data, for Directory. usage says what is in the directory.
func DirectoryFlag(flags *pflag.FlagSet, dir *string, usage string) {
	directoryFlag(flags, dir, usage, serveFolder)
}

// Directory returns where a store keeps its data: dir, or the default if that is empty.
func Directory(dir string) (string, error) {
	return (&dataFlags{dir: dir}).directory(serveFolder)
}
