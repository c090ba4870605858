package command

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
)

// What is below is for the further commands of a Program.

// Usage marks err as a mistake of the caller, such as flags that contradict each other: Main ends with 2
// then, after which a service manager need not start the command again. nil stays nil.
func Usage(err error) error { return usage(err) }

// Run runs a command that goes on until it is interrupted. It logs without waiting for the reader
// of the log, and survives the end of its terminal. The log has warnings and errors, unless
// --log-level says otherwise. flush waits a moment until the log is written, for the last line of a
// process that does not return.
func Run(cmd *cobra.Command, run func(ctx context.Context, logger *slog.Logger, flush func()) error) error {
	process, stop := startProcess(cmd, slog.LevelWarn)
	defer stop()
	return process.run(cmd.Context(), nil, func(ctx context.Context) error { return run(ctx, process.logger, process.flush) })
}

// BytesFlag adds a flag for a number of bytes, like 512MiB. What is at the pointer is the default.
func BytesFlag(flags *pflag.FlagSet, at *int64, name, usage string) {
	settings.Bytes(flags, at, name, usage)
}

// DirectoryFlag adds the flag --data, for Directory. usage says what is in the directory.
func DirectoryFlag(flags *pflag.FlagSet, dir *string, usage string) {
	directoryFlag(flags, dir, usage, serveFolder)
}

// Directory returns where a store keeps its data: dir, or the default if that is empty.
func Directory(dir string) (string, error) {
	return (&dataFlags{dir: dir}).directory(serveFolder)
}
