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
)

const (
	// redraw is how often top draws on a terminal.
	redraw = time.Second
	// clearScreen moves a terminal's cursor to the first line, and clears what is below.
	clearScreen = "\x1b[H\x1b[J"
)

// topFlags are the flags of top.
type topFlags struct {
	status  string
	once    bool
	timeout time.Duration
}

func topCommand() *cobra.Command {
	var f topFlags
	top := &cobra.Command{
		Use:   "top [NAME]...",
		Short: "Show the leases of a store, and how much time each has left",
		Long: `Show the leases that a status page knows, or those with the names given: the
holder of each, for how long it has had the lease, and how much time is left. A
terminal shows them again each second until Ctrl-C, other output once.`,
		Example: `top --admin 127.0.0.1:8080
top --admin 127.0.0.1:8080 press-7/active press-8/active`,
		RunE: func(cmd *cobra.Command, names []string) error { return f.run(cmd, names) },
	}
	flags := top.Flags()
	flags.StringVar(&f.status, "admin", "", statusHelp)
	flags.BoolVar(&f.once, "once", false, "print the table once on a terminal, too")
	flags.DurationVar(&f.timeout, "timeout", defaultTimeout, "how long to wait for each answer of the page")
	return top
}

// run shows the leases until ctx ends, or once.
func (f *topFlags) run(cmd *cobra.Command, names []string) error {
	switch {
	case f.status == "":
		return usage(errors.New("give --admin with the address of a status page"))
	case f.timeout <= 0:
		return usage(fmt.Errorf("--timeout %v is not positive", f.timeout))
	}
	page, err := adminclient.New(f.status)
	if err != nil {
		return usage(fmt.Errorf("--admin: %w", err))
	}
	defer page.Close()
	w := cmd.OutOrStdout()
	text, err := f.table(cmd.Context(), page, names)
	if err != nil || f.once || !output.IsTerminal(w) {
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
		case <-cmd.Context().Done():
			return nil // it was to go on until then
		case <-ticks.C:
		}
		next, err := f.table(cmd.Context(), page, names)
		if err != nil {
			problem = oneLine(err.Error()) + "\n"
		} else {
			text, problem = next, ""
		}
	}
}

// table returns what the page shows as a table.
func (f *topFlags) table(ctx context.Context, page *adminclient.Page, names []string) (string, error) {
	asking, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("no answer within --timeout %v", f.timeout))
	defer cancel()
	state, err := page.State(asking)
	switch {
	case ctx.Err() != nil:
		return "", signalCause(ctx, err)
	case err != nil:
		return "", exitWith(exitUnreachable, fmt.Errorf("the status page does not answer: %w", err))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s  %s\n", state.At.Local().Format(time.TimeOnly),
		output.Clean(fmt.Sprint(state.Info.Mode, " ", state.Info.Role, " ", state.Info.Data, " ", state.Info.Address)))
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tHOLDER\tSINCE\tLEFT")
	for _, lease := range state.Leases {
		if len(names) == 0 || slices.Contains(names, lease.Name) {
			fmt.Fprintln(table, leaseRow(lease, state.At))
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(state.Leases, func(l adminclient.Lease) bool { return l.Name == name }) {
			fmt.Fprintf(table, "%s\tnot known\t-\t-\n", output.Clean(name))
		}
	}
	_ = table.Flush() // to memory
	if state.LeasesHidden > 0 {
		fmt.Fprintf(&text, "%d more\n", state.LeasesHidden)
	}
	return text.String(), nil
}

// leaseRow returns the fields of a lease.
func leaseRow(lease adminclient.Lease, at time.Time) string {
	millis := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	holder, since, left := output.Clean(lease.Holder), at.Sub(lease.Since), millis(lease.LeftMillis).Round(100*time.Millisecond).String()
	if !lease.Held {
		holder, since, left = "no holder", millis(lease.NoHolderMillis), "-"
	}
	return fmt.Sprintf("%s\t%s\t%v\t%s", output.Clean(lease.Name), holder, since.Round(time.Second), left)
}
