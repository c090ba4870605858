package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/internal/sleep"
)

func topCommand() *cobra.Command {
	var page string
	top := &cobra.Command{
		Use:   "top [NAME]...",
		Short: "Show the leases of a store, and how much time each has left",
		Long: `Show the leases that a status page knows, or those with the names given: holder, for how long
it has had the lease, time left, and how many clients wait. A terminal shows them again
each second until Ctrl-C, other output once.`,
		Example: "top --admin 127.0.0.1:8080 press-7/active press-8/active",
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, w := cmd.Context(), cmd.OutOrStdout()
			text, err := leaseTable(ctx, page, names)
			for err == nil && output.IsTerminal(w) {
				fmt.Fprint(w, "\x1b[H\x1b[J", text) // from the first line on, and nothing below
				if !sleep.For(ctx, time.Second) {
					return nil // it was to go on until then
				}
				if text, err = leaseTable(ctx, page, names); err != nil {
					text, err = oneLine(err.Error())+"\n", nil
				}
			}
			_, failed := io.WriteString(w, text)
			return cmp.Or(err, failed)
		},
	}
	top.Flags().StringVar(&page, "admin", "", adminHelp)
	return top
}

// leaseTable returns the leases of a status page as a table.
func leaseTable(ctx context.Context, page string, names []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	state, err := adminclient.State(ctx, page)
	if err != nil {
		return "", noPage(err)
	}
	var text strings.Builder
	fmt.Fprintln(&text, state.At.Local().Format(time.TimeOnly), output.Clean(state.Info.Address))
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tHOLDER\tSINCE\tLEFT\tWAITING")
	millis := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, lease := range state.Leases {
		if len(names) > 0 && !slices.Contains(names, lease.Name) {
			continue
		}
		holder, since := lease.Holder, state.At.Sub(lease.Since)
		left, waiting := fmt.Sprint(millis(lease.LeftMillis).Round(100*time.Millisecond)),
			len(lease.Waiting)+lease.WaitingHidden
		if !lease.Held {
			holder, since, left = "no holder", millis(lease.NoHolderMillis), "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%v\t%s\t%d", output.Clean(lease.Name), output.Clean(holder), since.Round(time.Second),
			left, waiting)
		if lease.Gone != "" {
			fmt.Fprintf(table, ": no standby (%s gone since %s)", output.Clean(lease.Gone),
				lease.GoneSince.Local().Format(time.DateTime))
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // to memory
	if state.LeasesHidden > 0 {
		fmt.Fprintf(&text, "%d more\n", state.LeasesHidden)
	}
	return text.String(), nil
}
