// Command tenure runs a state store: an MQTT 5 broker that answers the state
// store protocol.
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
		last := logwriter.New(os.Stderr, logRoom) // standard error may not be read any more
		fmt.Fprintln(last, "tenure:", err)
		last.Close(lastWords)
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
	root.AddCommand(serveCommand(), passwordCommand())
	return root
}
