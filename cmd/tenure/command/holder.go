package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// A holderReport is what holder and leader print as JSON.
type holderReport struct {
	Time         string  `json:"time,omitempty"` // of --watch
	Name         *string `json:"name,omitempty"`
	NameBase64   []byte  `json:"nameBase64,omitempty"`
	Held         bool    `json:"held"`
	Holder       *string `json:"holder,omitempty"`
	HolderBase64 []byte  `json:"holderBase64,omitempty"`
	Value        *string `json:"value,omitempty"`
	ValueBase64  []byte  `json:"valueBase64,omitempty"`
	Version      string  `json:"version,omitempty"`
}

func reportHolder(name string, holder lease.Holder) holderReport {
	r := holderReport{Held: holder.Held}
	r.Name, r.NameBase64 = output.Text(name)
	if holder.Held {
		r.Holder, r.HolderBase64 = output.Text(holder.Name)
		r.Value, r.ValueBase64 = output.Text(holder.Value)
		r.Version = versionOf(holder.Version)
	}
	return r
}

// lookupFlags are the flags of holder and leader, which look a lease up.
type lookupFlags struct {
	connection
	asJSON bool
}

func (h *lookupFlags) register(flags *pflag.FlagSet) {
	h.connection.register(flags)
	flags.BoolVar(&h.asJSON, "json", false, "print JSON")
}

func holderCommand() *cobra.Command {
	var h lookupFlags
	holder := &cobra.Command{
		Use:   "holder NAME",
		Short: "Print which holder a lease has",
		Long: `Print the name of the holder that a lease has at this moment. By default that is
the MQTT client id of the process that acquired it. If no process holds it, the
exit code is 69.

` + connectionHelp,
		Example: `  tenure holder press-7/active
  tenure holder press-7/active --json | jq -r .version`,
		Args: exactly("the name of the lease"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return h.with(cmd, arguments[0], func(ctx context.Context, l *lease.Lease) error {
				return h.print(ctx, cmd, l)
			})
		},
	}
	h.register(holder.Flags())
	return holder
}

func leaderCommand() *cobra.Command {
	var h lookupFlags
	var watch bool
	leader := &cobra.Command{
		Use:   "leader NAME",
		Short: "Print which candidate leads, and with --watch each change",
		Long: `Print the name of the candidate that leads in an election, which is the holder
of the lease with that name. If none leads, the exit code is 69.

With --watch it prints a line with the time and the leader, and another at each
change, until SIGINT or SIGTERM; "none" means that none leads. A new term of the
same leader is a change. While the store does not answer, the log says so.

` + connectionHelp,
		Example: `  tenure leader press-7/active
  tenure leader press-7/active --watch
  tenure leader press-7/active --watch --json | jq --unbuffered -r .holder`,
		Args: exactly("the name of the election"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return h.with(cmd, arguments[0], func(ctx context.Context, l *lease.Lease) error {
				if watch {
					return h.watch(ctx, cmd, l)
				}
				return h.print(ctx, cmd, l)
			})
		},
	}
	h.register(leader.Flags())
	leader.Flags().BoolVar(&watch, "watch", false, "go on, and print each change")
	return leader
}

// with connects, and calls do with the lease of this name.
func (h *lookupFlags) with(cmd *cobra.Command, name string, do func(context.Context, *lease.Lease) error) error {
	return h.connection.with(cmd, func(ctx context.Context, client *transport.Client) error {
		l, err := lease.New(client, name, lease.Options{})
		if err != nil {
			return err
		}
		return do(ctx, l)
	})
}

// print prints the present holder.
func (h *lookupFlags) print(ctx context.Context, cmd *cobra.Command, l *lease.Lease) error {
	holder, err := l.Holder(ctx)
	if err != nil {
		return err
	}
	switch {
	case h.asJSON:
		if err := output.JSON(cmd.OutOrStdout(), reportHolder(l.Name(), holder)); err != nil {
			return err
		}
		if !holder.Held {
			return exitWith(exitMissing, nil)
		}
		return nil
	case !holder.Held:
		return exitWith(exitMissing, fmt.Errorf("no process holds %q", l.Name()))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), terminal.Clean(holder.Name))
	return err
}

// watch prints each change until ctx ends.
func (h *lookupFlags) watch(ctx context.Context, cmd *cobra.Command, l *lease.Lease) error {
	if _, err := l.Holder(ctx); err != nil {
		return err // Observe would wait for a store that is not there
	}
	for holder, err := range l.Observe(ctx) {
		if err != nil {
			if errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver) {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: the leader is not known: %s\n", cmd.Root().Name(), oneLine(err.Error()))
			continue
		}
		if err := h.printChange(cmd.OutOrStdout(), l.Name(), holder); err != nil {
			return err
		}
	}
	return nil
}

func (h *lookupFlags) printChange(w io.Writer, name string, holder lease.Holder) error {
	now := time.Now().Format(timeLayout)
	if h.asJSON {
		report := reportHolder(name, holder)
		report.Time = now
		return output.JSON(w, report)
	}
	shown := "none"
	if holder.Held {
		shown = holder.Name
	}
	_, err := fmt.Fprintln(w, now, terminal.Clean(shown))
	return err
}
