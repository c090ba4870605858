package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/tenurelock/tenure/bench/internal/latency"
	"github.com/tenurelock/tenure/bench/internal/peer"
)

// runLatency is the command of `make latency`.
func runLatency(ctx context.Context, arguments []string, out, progress io.Writer) error {
	options := latency.Options{Progress: progress}
	quick := false
	flags := flag.NewFlagSet("bench latency", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.BoolVar(&quick, "quick", false, "half a second of each: shows that everything works, and no figures to quote")
	flags.DurationVar(&options.Duration, "duration", time.Minute, "for how long renewals are due")
	flags.DurationVar(&options.Capacity, "capacity", 5*time.Second, "for how long the capacity is measured first, after half as long to warm up")
	flags.Float64Var(&options.Share, "share", 0.5, "the load, as a share of the capacity")
	flags.DurationVar(&options.Tick, "tick", 200*time.Microsecond, "how long the clock sleeps at least; the renewals that are due meanwhile leave together")
	flags.IntVar(&options.Spare, "spare", 64<<20, "how many bytes of garbage the client may have before its collector runs, beside what Go allows")
	flags.IntVar(&options.Connections, "connections", 1, "connections of the client")
	flags.IntVar(&options.Names, "leases", 1000, "leases that are renewed in turn")
	flags.IntVar(&options.InFlight, "in-flight", 256, "renewals that are under way at once while the capacity is measured")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("bench latency takes no arguments: %q", flags.Args())
	}
	if quick {
		options.Capacity, options.Duration = 500*time.Millisecond, 500*time.Millisecond
	}
	if err := options.Check(); err != nil {
		return err
	}
	state, _, err := lookAround(ctx, progress)
	if err != nil {
		return err
	}
	host, err := peer.NewHost()
	if err != nil {
		return err
	}
	result, err := latency.Run(ctx, host, options)
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n", machine(ctx, state, result.Others))
	return result.Write(out)
}
