package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"

	"github.com/tenurelock/tenure/bench/internal/growth"
	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/bench/internal/table"
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

// tables measures, and returns tables and the share of the processors that other programs used, from 0 to 1.
type tables func(ctx context.Context, host *peer.Host) (text string, others float64, err error)

// run runs "growth", or without a name the comparison of peers.
func run(ctx context.Context, arguments []string, out, progress io.Writer) error {
	prepare, commands := preparePeers, peer.Commands
	if len(arguments) > 0 && arguments[0] == "growth" {
		prepare, commands, arguments = prepareGrowth, peer.TenureCommand, arguments[1:]
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	quick := flags.Bool("quick", false, "small sizes and short times: shows that everything works, and no figures to quote")
	only := flags.String("only", "", "measure only what has a name that matches this expression, and the reference")
	complete := prepare(flags, progress)
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
	measureAll, err := complete(*quick, names)
	if err != nil {
		return err
	}
	host, err := peer.NewHost()
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "building and starting the servers")
	if err := host.Build(ctx, commands); err != nil {
		return errors.Join(err, host.Close())
	}
	text, others, err := measureAll(ctx, host)
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s During the run other programs used %.0f %% of them.\n\n%s", machine(ctx), 100*others, text)
	return err
}

// preparePeers adds the flags of a comparison. What it returns checks them.
func preparePeers(flags *flag.FlagSet, progress io.Writer) func(quick bool, names *regexp.Regexp) (tables, error) {
	options := measure.Options{
		InFlight: []int{1, 16, 64, 256}, Turn: 150 * time.Millisecond, HandOverTurn: time.Second, Progress: progress,
	}
	flags.IntVar(&options.Rounds, "rounds", 5, "how many turns each peer has, with each operation and number in flight")
	return func(quick bool, names *regexp.Regexp) (tables, error) {
		if options.Rounds < 1 {
			return nil, fmt.Errorf("--rounds is %d; there must be one at least", options.Rounds)
		}
		if quick {
			options.InFlight, options.Rounds = []int{1, 16}, 1
			options.Turn, options.HandOverTurn = 20*time.Millisecond, time.Millisecond
		}
		report := table.Report{Reference: peer.Reference}
		for _, p := range peer.All() {
			if p.Name != peer.Reference && !names.MatchString(p.Name) {
				continue
			}
			if err := p.Installed(); err != nil {
				return nil, err
			}
			options.Peers = append(options.Peers, p)
			report.About = append(report.About, [2]string{p.Name, p.About})
		}
		return func(ctx context.Context, host *peer.Host) (string, float64, error) {
			result, err := measure.Run(ctx, host, options)
			report.Rows = result.Rows
			return versions(ctx) + report.String(), result.Others, err
		}, nil
	}
}

// prepareGrowth does the same for what grows.
func prepareGrowth(flags *flag.FlagSet, progress io.Writer) func(quick bool, names *regexp.Regexp) (tables, error) {
	options := growth.Options{Progress: progress}
	flags.IntVar(&options.Largest, "largest", 0, "leave out sizes above this one; 0 leaves out none")
	return func(quick bool, names *regexp.Regexp) (tables, error) {
		options.Quick = quick
		options.Subjects = slices.DeleteFunc(growth.All(), func(subject *growth.Subject) bool {
			return !names.MatchString(subject.Name) || len(options.Sizes(subject)) == 0
		})
		if len(options.Subjects) == 0 {
			return nil, fmt.Errorf("--only %q and --largest %d leave nothing to measure", names, options.Largest)
		}
		return func(ctx context.Context, host *peer.Host) (string, float64, error) {
			result, err := growth.Run(ctx, host, options)
			if err != nil {
				return "", 0, err
			}
			return result.String(), result.Others, nil
		}, nil
	}
}

// modules are those whose versions matter.
var modules = []string{
	"github.com/bsm/redislock", "github.com/redis/go-redis/v9", "github.com/redis/rueidis",
	"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "go.etcd.io/etcd/server/v3",
	"github.com/eclipse/paho.golang", "github.com/mochi-mqtt/server/v2",
}

// versions says in a paragraph what was compared.
func versions(ctx context.Context) string {
	versions := []string{runtime.Version()}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range build.Deps {
			if slices.Contains(modules, dependency.Path) {
				versions = append(versions, strings.TrimPrefix(dependency.Path, "github.com/")+" "+dependency.Version)
			}
		}
	}
	if version, err := exec.CommandContext(ctx, "redis-server", "--version").Output(); err == nil {
		fields := strings.Fields(string(version)) // Redis server v=7.0.15 sha=…
		if len(fields) > 2 {
			versions = append(versions, "Redis "+strings.TrimPrefix(fields[2], "v="))
		}
	}
	return "Versions: " + strings.Join(versions, ", ") + ".\n\n"
}

// machine says in a sentence on what was measured.
func machine(ctx context.Context) string {
	model := "an unknown processor"
	if info, err := cpu.InfoWithContext(ctx); err == nil && len(info) > 0 {
		model = info[0].ModelName
	}
	return fmt.Sprintf("%d processors (%s), %s/%s.", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH)
}
