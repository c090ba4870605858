package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
	"github.com/tenurelock/tenure/cmd/tenure/internal/top"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	// redraw is how often top draws: so often that bars move evenly.
	redraw = 250 * time.Millisecond
	// maxWatched bounds the names of top, each of which is a watch at the store.
	maxWatched = 1000
)

// topFlags are the flags of top.
type topFlags struct {
	connection
	status string
	ttl    time.Duration
	once   bool
	asJSON bool
}

func (f *topFlags) register(flags *pflag.FlagSet) {
	f.connection.register(flags)
	flags.StringVar(&f.status, "admin", "", statusHelp+"; then no names are needed")
	flags.DurationVar(&f.ttl, "ttl", 0, "TTL of the leases that are named; 0: estimate it from their renewals")
	flags.BoolVar(&f.once, "once", false, "print the table once, as for output that is no terminal")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON, once")
}

func topCommand() *cobra.Command {
	var f topFlags
	show := &cobra.Command{
		Use:   "top [NAME]...",
		Short: "Show live leases, with bars of the time left",
		Long: `Show leases and their holders, and how much time each has left, until q or Ctrl-C.
Output that is no terminal gets the table once, as with --once.

With --admin it shows the leases of a store as its status page knows them: all, or
those with the names given. Otherwise it watches the leases with the names given,
over MQTT. There a store does not tell the TTL of a lease: give --ttl, or it is
estimated as three times the time between two renewals, and marked with ~. What is
marked with > began before it was first seen.

` + connectionHelp,
		Example: `  tenure top --admin http://127.0.0.1:8080
  tenure top press-7/active press-8/active
  tenure top --admin http://127.0.0.1:8080 --json | jq '.leases[] | select(.held | not)'`,
		Args: func(_ *cobra.Command, names []string) error { return f.check(names) },
		RunE: func(cmd *cobra.Command, names []string) error { return f.run(cmd, names) },
	}
	f.register(show.Flags())
	return show
}

// check refuses names that cannot be watched.
func (f *topFlags) check(names []string) error {
	for i, name := range names {
		switch {
		case name == "":
			return errors.New("a name is empty")
		case slices.Contains(names[:i], name):
			return fmt.Errorf("%q is there twice", name)
		}
	}
	if len(names) > maxWatched {
		return fmt.Errorf("%d names: at most %d can be watched; --admin shows all leases of a store", len(names), maxWatched)
	}
	return nil
}

// run connects to a source and shows it.
func (f *topFlags) run(cmd *cobra.Command, names []string) error {
	switch {
	case f.status == "" && len(names) == 0:
		return usage(errors.New("give --admin with the address of a status page, or the names of leases"))
	case f.ttl < 0 || f.ttl > lease.MaxTTL:
		return usage(fmt.Errorf("--ttl %v: choose up to %v, or 0 to estimate it", f.ttl, lease.MaxTTL))
	case f.status != "" && f.ttl != 0:
		return usage(errors.New("--ttl is for leases that are named: the status page knows it"))
	}
	process, stop := startClient(cmd, slog.LevelWarn)
	defer stop()
	ctx := cmd.Context()
	if f.status != "" {
		page, err := adminclient.New(f.status)
		if err != nil {
			return usage(fmt.Errorf("--admin: %w", err))
		}
		defer page.Close()
		return f.show(ctx, cmd, top.NewStatus(page), names)
	}
	address, options, err := f.options(process)
	if err != nil {
		return err
	}
	out := terminal.On(cmd.OutOrStdout())
	if !f.prints(out) {
		options.Logger = slog.New(slog.DiscardHandler) // it would spoil the screen, which shows the problem
	}
	client, err := f.dialNow(ctx, address, options)
	if err != nil {
		return err
	}
	defer client.Close()
	// The first answer says whether there is a store: a watch would wait for one.
	if _, err := client.Get(ctx, names[0]); err != nil {
		return signalCause(ctx, err)
	}
	return f.show(ctx, cmd, top.NewWatching(client, names, f.ttl), nil)
}

// prints reports whether the table is printed once.
func (f *topFlags) prints(out *terminal.Output) bool { return f.once || f.asJSON || !out.IsTerminal() }

// show shows a source, or the leases with these names if there are any, until the user ends it, or
// once.
func (f *topFlags) show(ctx context.Context, cmd *cobra.Command, source top.Source, names []string) (err error) {
	out := terminal.On(cmd.OutOrStdout())
	ctx, cancel := context.WithCancelCause(ctx)
	var following sync.WaitGroup
	following.Go(func() { cancel(source.Run(ctx)) })
	defer following.Wait()
	defer cancel(nil)
	limit := time.NewTimer(f.timeout)
	defer limit.Stop()
	select {
	case <-source.Ready():
	case <-ctx.Done():
		return f.failure(ctx, cmd)
	case <-limit.C:
		return exitWith(exitUnreachable, fmt.Errorf("not all leases were read within --timeout %v", f.timeout))
	}
	if f.prints(out) {
		snapshot := source.Snapshot(time.Now()).Only(names)
		if f.asJSON {
			return output.JSON(out, snapshot.Report())
		}
		_, err := fmt.Fprintln(out, strings.Join(snapshot.Lines(out.Width(), 0, out.Style), "\n"))
		return err
	}
	keys, _ := cmd.InOrStdin().(*os.File)
	if keys == nil {
		keys = os.Stdin
	}
	err = out.Show(ctx, keys, redraw, func(columns, rows int) []string {
		return source.Snapshot(time.Now()).Only(names).Lines(columns, rows, out.Style)
	})
	if err != nil && ctx.Err() != nil {
		return f.failure(ctx, cmd)
	}
	return err
}

// failure returns why a source ended.
func (f *topFlags) failure(ctx context.Context, cmd *cobra.Command) error {
	err := context.Cause(ctx)
	if cmd.Context().Err() != nil {
		return signalCause(cmd.Context(), err)
	}
	var refused *transport.RefusedError
	if f.status != "" && !errors.As(err, &refused) {
		return exitWith(exitUnreachable, fmt.Errorf("the status page does not answer: %w", err))
	}
	return err
}
