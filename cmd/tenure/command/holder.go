package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// A holderReport is what holder prints as JSON.
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

// holderFlags are the flags of holder.
type holderFlags struct {
	connection
	watch, asJSON bool
}

func holderCommand() *cobra.Command {
	var h holderFlags
	holder := &cobra.Command{
		Use:   "holder NAME",
		Short: "Print which holder a lease has, and with --watch each change",
		Long: `Print the name of the holder that a lease has at this moment: of an election,
the leader. By default that is the MQTT client id of the process that acquired it.
If no process holds it, the exit code is 69.

With --watch it prints a line with the time and the holder, and another at each
change, until SIGINT or SIGTERM; "none" means that no process holds it. A new
tenure of the same holder is a change. While the store does not answer, standard
error says so.

` + connectionHelp,
		Example: `holder press-7/active
holder press-7/active --json | jq -r .version
holder press-7/active --watch --json | jq --unbuffered -r .holder`,
		Args: exactly("the name of the lease"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return h.with(cmd, func(ctx context.Context, client *transport.Client) error {
				l, err := lease.New(client, arguments[0], lease.Options{})
				if err != nil {
					return err
				}
				now, err := l.Holder(ctx) // Observe would wait for a store that is not there
				switch {
				case err != nil:
					return err
				case h.watch:
					return h.follow(ctx, cmd, l)
				}
				return h.print(cmd, arguments[0], now)
			})
		},
	}
	h.connection.register(holder.Flags())
	holder.Flags().BoolVar(&h.watch, "watch", false, "go on, and print each change")
	holder.Flags().BoolVar(&h.asJSON, "json", false, "print JSON")
	return holder
}

// print prints the present holder.
func (h *holderFlags) print(cmd *cobra.Command, name string, holder lease.Holder) error {
	switch {
	case h.asJSON:
		if err := output.JSON(cmd.OutOrStdout(), reportHolder(name, holder)); err != nil || holder.Held {
			return err
		}
		return exitWith(exitMissing, nil)
	case !holder.Held:
		return exitWith(exitMissing, fmt.Errorf("no process holds %q", name))
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), output.Clean(holder.Name))
	return err
}

// follow prints each change until ctx ends.
func (h *holderFlags) follow(ctx context.Context, cmd *cobra.Command, l *lease.Lease) error {
	for holder, err := range l.Observe(ctx) {
		switch {
		case errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrSessionTakenOver):
			return err
		case err != nil:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: the holder is not known: %s\n", cmd.Root().Name(), oneLine(err.Error()))
			continue
		}
		if err := h.printChange(cmd.OutOrStdout(), l.Name(), holder); err != nil {
			return err
		}
	}
	return nil
}

func (h *holderFlags) printChange(w io.Writer, name string, holder lease.Holder) error {
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
	_, err := fmt.Fprintln(w, now, output.Clean(shown))
	return err
}
