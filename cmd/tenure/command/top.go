package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// redraw is how often top draws on a terminal.
	redraw = time.Second
	// clearScreen moves a terminal's cursor to the first line, and clears what is below.
	clearScreen = "\x1b[H\x1b[J"
	// amber and plain are the colours of a terminal for a warning, and after it.
	amber, plain = "\x1b[33m", "\x1b[0m"
)

func topCommand() *cobra.Command {
	var status string
	top := &cobra.Command{
		Use:   "top [NAME]...",
		Short: "Show the leases of a store, and how much time each has left",
		Long: `Show the leases that a status page knows, or those with the names given: the holder of
each, for how long it has had the lease, how much time is left, and how many clients
wait for it. A terminal shows them again each second until Ctrl-C, other output once.`,
		Example: "top --admin 127.0.0.1:8080 press-7/active press-8/active",
	}
	top.RunE = func(cmd *cobra.Command, names []string) error {
		page, err := statusPage(status)
		if err != nil {
			return err
		}
		defer page.Close()
		return showLeases(cmd.Context(), cmd.OutOrStdout(), page, names)
	}
	top.Flags().StringVar(&status, "admin", "", statusHelp)
	return top
}

// statusHelp is the text of --admin of the commands that ask a status page.
const statusHelp = "address of a status page, as serve and attach have in the same flag, such as 127.0.0.1:8080"

// statusPage returns the page at the address of --admin. The caller closes it.
func statusPage(address string) (*adminclient.Page, error) {
	if address == "" {
		return nil, usagef("give --admin with the address of a status page")
	}
	page, err := adminclient.New(address)
	if err != nil {
		return nil, usagef("--admin: %w", err)
	}
	return page, nil
}

// noPage says that a status page does not answer.
func noPage(err error) error {
	return exitWith(exitUnreachable, fmt.Errorf("the status page does not answer: %w", err))
}

// showLeases shows the leases: on a terminal until ctx ends, and else once.
func showLeases(ctx context.Context, w io.Writer, page *adminclient.Page, names []string) error {
	text, err := leaseTable(ctx, page, names, output.IsTerminal(w))
	if err != nil || !output.IsTerminal(w) {
		_, failed := io.WriteString(w, text)
		return errors.Join(err, failed)
	}
	ticks := time.NewTicker(redraw)
	defer ticks.Stop()
	for problem := ""; ; {
		if _, err := io.WriteString(w, clearScreen+text+problem); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // it was to go on until then
		case <-ticks.C:
		}
		if next, err := leaseTable(ctx, page, names, true); err == nil {
			text, problem = next, ""
		} else {
			problem = oneLine(err.Error()) + "\n"
		}
	}
}

// leaseTable returns what the page shows as a table, in colours for a terminal.
func leaseTable(ctx context.Context, page *adminclient.Page, names []string, colours bool) (string, error) {
	asking, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	state, err := page.State(asking)
	if err != nil {
		return "", noPage(err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s  %s\n", state.At.Local().Format(time.TimeOnly),
		output.Clean(fmt.Sprint(state.Info.Mode, " ", state.Info.Role, " ", state.Info.Data, " ", state.Info.Address)))
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tHOLDER\tSINCE\tLEFT\tSTANDBY")
	for _, lease := range state.Leases {
		if len(names) == 0 || slices.Contains(names, lease.Name) {
			row := leaseRow(lease, state.At)
			switch {
			case lease.Gone == "":
				row += fmt.Sprintf("\t%d", len(lease.Waiting)+lease.WaitingHidden)
			case colours:
				row += "\t" + amber + noStandby(lease) + plain // the last column: its width does not matter
			default:
				row += "\t" + noStandby(lease)
			}
			fmt.Fprintln(table, row)
		}
	}
	_ = table.Flush() // to memory
	if state.LeasesHidden > 0 {
		fmt.Fprintf(&text, "%d more\n", state.LeasesHidden)
	}
	return text.String(), nil
}

// noStandby says that no client waits for a lease for which one has waited.
func noStandby(lease statestore.Lease) string {
	since := lease.GoneSince.Local().Format(time.DateTime)
	return fmt.Sprintf("no standby (%s gone since %s)", output.Clean(lease.Gone), since)
}

// leaseRow returns the fields of a lease, but its standby.
func leaseRow(lease statestore.Lease, at time.Time) string {
	millis := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	holder, since := output.Clean(lease.Holder), at.Sub(lease.Since)
	left := millis(lease.LeftMillis).Round(100 * time.Millisecond).String()
	if !lease.Held {
		holder, since, left = "no holder", millis(lease.NoHolderMillis), "-"
	}
	return fmt.Sprintf("%s\t%s\t%v\t%s", output.Clean(lease.Name), holder, since.Round(time.Second), left)
}
