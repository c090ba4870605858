package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/load"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
	"github.com/tenurelock/tenure/transport"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	connection
	load.Options
	verbs  []string
	asJSON bool
}

func (b *benchFlags) register(flags *pflag.FlagSet) {
	b.connection.register(flags)
	flags.IntVar(&b.Clients, "clients", 10, "how many clients connect")
	flags.IntVar(&b.InFlight, "in-flight", 1, "how many operations each client has under way at most")
	flags.StringSliceVar(&b.verbs, "verbs", []string{"set", "get"}, "operations, in turn: set, get, and lease (acquire and release); one that comes twice has twice the share")
	flags.DurationVar(&b.Duration, "duration", 10*time.Second, "how long to send requests")
	flags.Float64Var(&b.Rate, "rate", 0, "operations per second of all clients together; 0: each client sends the next when it has an answer")
	flags.IntVar(&b.ValueSize, "value-size", 64, "length of the values in bytes")
	flags.StringVar(&b.Prefix, "prefix", "tenure-bench", "what the keys begin with; a part of the run's own and a slash follow")
	flags.BoolVar(&b.asJSON, "json", false, "print JSON")
}

func benchCommand() *cobra.Command {
	var b benchFlags
	bench := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast a store answers",
		Long: `Measure the throughput and the latencies of a store, and print percentiles and a
histogram. Ctrl-C ends the measurement early and prints what was measured.

Without --rate, a client sends the next operation when one is answered: that
finds the highest throughput, but a store that pauses is asked less meanwhile,
so the pause shows in few operations only. With --rate, operations are due at
fixed times, and latency counts from then, also for those that could not be sent
any more: use it to see what clients would see.

The keys are below --prefix and a part of the run's own, expire by themselves, and
are removed at the end. If operations failed, the exit code is 1. With --client-id,
the clients are called that and a number: NAME-1, NAME-2 and so on.

` + connectionHelp,
		Example: `  tenure bench
  tenure bench --clients 50 --in-flight 4 --verbs set,get,get,lease
  tenure bench --rate 2000 --duration 1m --json | jq .latency.p99Millis`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.register(bench.Flags())
	return bench
}

// run measures and prints.
func (b *benchFlags) run(cmd *cobra.Command) error {
	errOut := terminal.On(cmd.ErrOrStderr())
	process, stop := startClient(cmd, slog.LevelWarn)
	defer stop()
	address, connecting, err := b.options(process)
	if err != nil {
		return err
	}
	o := b.Options
	if o.Verbs, err = load.ParseVerbs(b.verbs); err != nil {
		return usage(fmt.Errorf("--verbs: %w", err))
	}
	if o.Prefix = strings.TrimSuffix(o.Prefix, "/"); o.Prefix == "" {
		return usage(errors.New("--prefix is empty: the keys need names of their own"))
	}
	o.Prefix += "/" + strings.ToLower(rand.Text()[:12])
	if err := o.Check(); err != nil {
		return usage(err)
	}
	o.Dial = func(ctx context.Context, index int) (*transport.Client, error) {
		options := connecting
		if options.ClientID != "" {
			options.ClientID += fmt.Sprintf("-%d", index+1)
		}
		if index > 0 && !process.logger.Enabled(ctx, slog.LevelDebug) {
			options.Logger = slog.New(slog.DiscardHandler) // the first one says for all why it cannot connect
		}
		return b.dialNow(ctx, address, options)
	}
	progress := errOut.Progress()
	o.Progress = func(p load.Progress) { progress.Show(benchProgress(p, errOut.Style)) }
	ctx := cmd.Context()
	progress.Show(fmt.Sprintf("connecting %d clients", o.Clients))
	report, err := load.Run(ctx, o)
	progress.Clear()
	if err != nil {
		if ctx.Err() != nil {
			return signalCause(ctx, err)
		}
		return err
	}
	if b.asJSON {
		err = output.JSON(cmd.OutOrStdout(), report)
	} else {
		err = printBench(terminal.On(cmd.OutOrStdout()), o, report)
	}
	switch {
	case err != nil:
		return err
	case report.Interrupted:
		return signalCause(ctx, errors.New("the figures are of the time before"))
	case report.KeysLeft > 0:
		return fmt.Errorf("%d keys below %s could not be removed; they expire within %v", report.KeysLeft, o.Prefix, report.ExpireWithin)
	case report.Failed > 0:
		return fmt.Errorf("%d of %d operations failed", report.Failed, report.Failed+report.Done)
	}
	return nil
}

// benchProgress shows how far a measurement is.
func benchProgress(p load.Progress, style terminal.Style) string {
	share := p.Elapsed.Seconds() / p.Duration.Seconds()
	line := fmt.Sprintf("%s %3.0f%%  %.0f/s  p50 %s  p99 %s", terminal.Bar(share, 20, style), 100*min(share, 1), p.PerSecond, latencyText(p.P50), latencyText(p.P99))
	if p.Failed > 0 {
		line += fmt.Sprintf("  %d failed", p.Failed)
	}
	return line
}

// latencyText returns a duration with three digits or so.
func latencyText(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// printBench prints a report for people.
func printBench(out *terminal.Output, o load.Options, report load.Report) error {
	var lines []string
	add := func(format string, values ...any) { lines = append(lines, fmt.Sprintf(format, values...)) }
	loop := "each client sends the next operation after an answer"
	if o.Rate > 0 {
		loop = fmt.Sprintf("%g operations per second are due", o.Rate)
	}
	add("%d clients with %d in flight for %v: %s", report.Clients, report.InFlight, report.Elapsed.Round(time.Millisecond), loop)
	add("%d operations, %.0f/s, %d failed, %d due and never sent", report.Done, report.PerSecond, report.Failed, report.Omitted)
	for _, text := range slices.Sorted(maps.Keys(report.Errors)) {
		add("  %d times: %s", report.Errors[text], terminal.Clean(text))
	}
	table := terminal.Table{Head: []string{"LATENCY", "COUNT", "MIN", "MEAN", "P50", "P90", "P99", "P99.9", "P99.99", "MAX"}}
	row := func(name string, l load.Latency) {
		cells := []terminal.Cell{{Text: name}, {Text: fmt.Sprint(l.Count), Right: true}}
		for _, d := range []output.Millis{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.P9999, l.Max} {
			cells = append(cells, terminal.Cell{Text: latencyText(d.Duration), Right: true})
		}
		table.Rows = append(table.Rows, cells)
	}
	row("all", report.Latency)
	if o.Rate > 0 {
		row("from sending", report.Service)
	}
	for _, verb := range load.Verbs {
		if l, used := report.Verbs[verb]; used {
			row(string(verb), l)
		}
	}
	add("")
	lines = append(lines, table.Lines(0, out.Style)...)
	add("")
	var buckets []terminal.Bucket
	for _, b := range report.Latency.Buckets {
		buckets = append(buckets, terminal.Bucket{Label: "< " + latencyText(b.Below.Duration), Count: b.Count})
	}
	lines = append(lines, terminal.Histogram(buckets, out.Width(), out.Style)...)
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}
