// Command tenure runs a state store: as part of an MQTT 5 broker of its own (serve), or as a
// client of a broker that runs already (attach). It also hashes passwords for the users of
// the broker (password), and checks, backs up, restores and exports the data of a store (check,
// backup, restore, export).
//
// SIGINT and SIGTERM stop it. Standard output says where the store answers, standard error
// is the log. The exit status is 1 after an error.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		stderr := logwriter.New(os.Stderr, logQueue) // its reader may have stopped
		fmt.Fprintln(stderr, "tenure:", err)
		stderr.Close(logFlush)
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "tenure",
		Short:         "Leases, fencing tokens and a state store over MQTT 5",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(), attachCommand(), passwordCommand(),
		checkCommand(), backupCommand(), restoreCommand(), exportCommand())
	return root
}
