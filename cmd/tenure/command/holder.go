package command

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// holderFlags are the flags of holder.
type holderFlags struct {
	connection
	watch, asJSON bool
}

func holderCommand() *cobra.Command {
	var h holderFlags
	holder := clientCommand(&cobra.Command{
		Use:   "holder NAME",
		Short: "Print which holder a lease has, and with --watch each change",
		Long: `Print the holder of a lease, such as the leader of an election. Without one, the exit code
is 105. --watch prints the time and the holder, or "none", and again at each change.`,
		Example: "holder press-7/active\nholder press-7/active --watch --json | jq --unbuffered -r .holder",
	}, &h.connection, h.run)
	holder.Flags().BoolVar(&h.watch, "watch", false, "go on, and print each change")
	holder.Flags().BoolVar(&h.asJSON, "json", false, "print JSON")
	return holder
}

func (h *holderFlags) run(cmd *cobra.Command, client *transport.Client, arguments []string) error {
	l, err := lease.New(client, arguments[0], lease.Options{})
	if err != nil {
		return err
	}
	now, err := l.Holder(cmd.Context()) // Observe would wait for a store that is not there
	switch {
	case err != nil:
		return err
	case h.watch:
		return h.follow(cmd, l)
	case !now.Held && !h.asJSON:
		return exitWith(exitMissing, fmt.Errorf("no process holds %q", l.Name()))
	}
	err = h.print(cmd.OutOrStdout(), "", l.Name(), now)
	if err == nil && !now.Held {
		err = exitWith(exitMissing, nil)
	}
	return err
}

// follow prints each change until it is interrupted.
func (h *holderFlags) follow(cmd *cobra.Command, l *lease.Lease) error {
	for holder, err := range l.Observe(cmd.Context()) {
		switch {
		case errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrSessionTakenOver):
			return err
		case err != nil:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: the holder is not known: %s\n", cmd.Root().Name(), oneLine(err.Error()))
			continue
		}
		if err := h.print(cmd.OutOrStdout(), time.Now().Format(timeLayout), l.Name(), holder); err != nil {
			return err
		}
	}
	return nil
}

// A holderReport is what holder prints as JSON.
type holderReport struct {
	Time    string `json:"time,omitempty"` // of --watch
	Name    string `json:"name"`
	Held    bool   `json:"held"`
	Holder  string `json:"holder,omitempty"`
	Value   string `json:"value,omitempty"`
	Version string `json:"version,omitempty"`
}

// print prints the holder of a lease, with the time of a change if at is not empty.
func (h *holderFlags) print(w io.Writer, at, name string, holder lease.Holder) error {
	if h.asJSON {
		return output.JSON(w, holderReport{at, name, holder.Held, holder.Name, holder.Value, versionOf(holder.Version)})
	}
	text := "none"
	if holder.Held {
		text = output.Clean(holder.Name)
	}
	_, err := fmt.Fprintln(w, strings.TrimSpace(at+" "+text))
	return err
}
