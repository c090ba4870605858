// Command tenure runs a state store: an MQTT 5 broker that answers the state
// store protocol.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tenure:", err)
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
	root.AddCommand(serveCommand())
	return root
}

func serveCommand() *cobra.Command {
	var (
		options server.Options
		dialect string
		verbose bool
	)
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker with a state store inside, until interrupted",
		Long: `Run an MQTT 5 broker with a state store inside, until SIGINT or SIGTERM.

The store is in memory: a restart begins empty. There is no authentication, so
an address that is not loopback is open to everybody who can reach it.`,
		Example: `  tenure serve
  tenure serve --addr 127.0.0.1:0          # any free port; the first line says which
  tenure serve --max-keys 10000 --verbose`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch dialect {
			case "deployed":
				options.Dialect = statestore.Deployed
			case "documented":
				options.Dialect = statestore.Documented
			default:
				return fmt.Errorf("--dialect %q: choose deployed or documented", dialect)
			}
			level := slog.LevelWarn
			if verbose {
				level = slog.LevelDebug
			}
			options.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			s, err := server.New(options)
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%w; choose another with --addr, or stop the program that has it", err)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening on mqtt://%s\n", s.Addr())
			if err := s.Serve(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "stopped")
			return nil
		},
	}
	flags := serve.Flags()
	flags.StringVar(&options.Addr, "addr", server.DefaultAddr, "TCP address to listen on; port 0 takes a free one")
	flags.IntVar(&options.Store.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means no limit")
	flags.Int64Var(&options.Store.MaxBytes, "max-bytes", 0, "how many bytes keys and values may have together; 0 means no limit")
	flags.Uint32Var(&options.MaxPacketSize, "max-packet-size", 1<<20, "largest MQTT packet in bytes")
	flags.StringVar(&dialect, "dialect", "deployed", "how to write replies where deployed stores and their documentation differ: deployed or documented")
	flags.BoolVar(&verbose, "verbose", false, "log every request and connection")
	return serve
}
