package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/bench/internal/growth"
	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/bench/internal/peer"
)

func main() {
	peer.ServeChild(growth.Children)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		stop()
		os.Exit(1)
	}
}

// run runs "growth", or without a name the comparison of peers.
func run(ctx context.Context, arguments []string, out, progress io.Writer) error {
	ofGrowth := len(arguments) > 0 && arguments[0] == "growth"
	if ofGrowth {
		arguments = arguments[1:]
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	quick := flags.Bool("quick", false,
		"small sizes and short times: shows that everything works, and no figures to quote")
	only := flags.String("only", "", "measure only what has a name that matches this expression, and the reference")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no command: choose growth, or none for the peers", flags.Args())
	}
	names, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	commands, choose := peer.Commands, comparison
	if ofGrowth {
		commands, choose = peer.TenureCommand, growing
	}
	measureAll, err := choose(names, *quick, progress)
	if err != nil {
		return err
	}
	host, err := peer.NewHost()
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "building and starting the servers")
	var result fmt.Stringer
	if err = host.Build(ctx, commands); err == nil {
		result, err = measureAll(ctx, host)
	}
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d processors, %s/%s, %s.\n\n%s", runtime.NumCPU(), runtime.GOOS,
		runtime.GOARCH, runtime.Version(), result)
	return err
}

type measurement func(ctx context.Context, host *peer.Host) (fmt.Stringer, error)

// comparison chooses the peers.
func comparison(names *regexp.Regexp, quick bool, progress io.Writer) (measurement, error) {
	options := measure.Options{
		InFlight: []int{1, 16, 64, 256}, Rounds: 5, Turn: 150 * time.Millisecond, HandOverTurn: time.Second,
		Progress: progress,
	}
	if quick {
		options.InFlight, options.Rounds = []int{1, 16}, 1
		options.Turn, options.HandOverTurn = 20*time.Millisecond, time.Millisecond
	}
	for _, p := range peer.All() {
		if p.Name != peer.Reference && !names.MatchString(p.Name) {
			continue
		}
		if err := p.Installed(); err != nil {
			return nil, err
		}
		options.Peers = append(options.Peers, p)
	}
	return func(ctx context.Context, host *peer.Host) (fmt.Stringer, error) {
		return measure.Run(ctx, host, options)
	}, nil
}

// growing chooses what grows.
func growing(names *regexp.Regexp, quick bool, progress io.Writer) (measurement, error) {
	subjects := slices.DeleteFunc(growth.All(), func(s *growth.Subject) bool { return !names.MatchString(s.Name) })
	if len(subjects) == 0 {
		return nil, fmt.Errorf("--only %q leaves nothing to measure", names)
	}
	options := growth.Options{Subjects: subjects, Quick: quick, Progress: progress}
	return func(ctx context.Context, host *peer.Host) (fmt.Stringer, error) {
		return growth.Run(ctx, host, options)
	}, nil
}
