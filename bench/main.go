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
	peer.ServeChild()
	growth.ServeChild()
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

// settings are the flags.
type settings struct {
	quick, write, anyway bool
	document, only       string
	rounds               int
}

// run runs one of the commands: "latency", "growth", or without a name the comparison of peers.
func run(ctx context.Context, arguments []string, out, progress io.Writer) error {
	if len(arguments) > 0 {
		switch arguments[0] {
		case "latency":
			return runLatency(ctx, arguments[1:], out, progress)
		case "growth":
			return runGrowth(ctx, arguments[1:], out, progress)
		}
	}
	return runPeers(ctx, arguments, out, progress)
}

func runPeers(ctx context.Context, arguments []string, out, progress io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.BoolVar(&s.quick, "quick", false, "one short round with 1 and 16 in flight: shows that everything works, and no figures to quote")
	flags.BoolVar(&s.write, "write", false, "write the tables into --document")
	flags.StringVar(&s.document, "document", "peers.md", "the file for --write; it has lines between which the tables are")
	flags.BoolVar(&s.anyway, "anyway", false, "write the tables even if other programs use the processors")
	flags.StringVar(&s.only, "only", "", "measure the peers whose names match this expression, and the reference")
	flags.IntVar(&s.rounds, "rounds", 5, "how many turns each peer has, with each operation and number in flight")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no command: choose latency or growth, or none for the peers", flags.Args())
	}
	if s.rounds < 1 {
		return fmt.Errorf("--rounds is %d; there must be one at least", s.rounds)
	}
	if s.write {
		// A document that cannot take the tables is found before minutes have passed.
		if err := writeDocument(s.document, table.Peers, ""); err != nil {
			return err
		}
	}
	peers, err := choose(s.only)
	if err != nil {
		return err
	}
	state, busy, err := lookAround(ctx, progress)
	if err != nil {
		return err
	}
	if err := mayWrite(s.write, s.anyway, busy, "in use before the run"); err != nil {
		return err
	}

	host, err := peer.NewHost()
	if err != nil {
		return err
	}
	result, err := measureAll(ctx, host, s.options(peers, progress))
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	report := &table.Report{
		Reference: peer.Reference,
		Notes:     notes(ctx, state, result.Others),
		Rows:      result.Rows,
	}
	for _, p := range peers {
		report.About = append(report.About, [2]string{p.Name, p.About})
	}
	var text strings.Builder
	if err := report.Write(&text); err != nil {
		return err
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	if !s.write {
		return nil
	}
	if err := mayWrite(s.write, s.anyway, result.Others, "used by other programs during the run"); err != nil {
		return err
	}
	return writeDocument(s.document, table.Peers, text.String())
}

func measureAll(ctx context.Context, host *peer.Host, options measure.Options) (measure.Result, error) {
	fmt.Fprintln(options.Progress, "building and starting the servers")
	if err := host.Build(ctx, peer.Commands); err != nil {
		return measure.Result{}, err
	}
	return measure.Run(ctx, host, options)
}

// choose returns the reference and the peers whose names match.
func choose(only string) ([]*peer.Peer, error) {
	matches, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	peers := slices.DeleteFunc(peer.All(), func(p *peer.Peer) bool {
		return p.Name != peer.Reference && !matches.MatchString(p.Name)
	})
	for _, p := range peers {
		if err := p.Installed(); err != nil {
			return nil, err
		}
	}
	return peers, nil
}

func (s *settings) options(peers []*peer.Peer, progress io.Writer) measure.Options {
	if s.quick {
		return measure.Options{
			Peers: peers, InFlight: []int{1, 16}, Rounds: 1,
			Turn: 20 * time.Millisecond, HandOverTurn: time.Millisecond, Progress: progress,
		}
	}
	return measure.Options{
		Peers: peers, InFlight: []int{1, 16, 64, 256}, Rounds: s.rounds,
		Turn: 150 * time.Millisecond, HandOverTurn: time.Second, Progress: progress,
	}
}

// lookAround says what other programs do before a run: in a sentence, and as the share of the
// processors that is in use, from 0 to 1.
func lookAround(ctx context.Context, progress io.Writer) (state string, busy float64, err error) {
	load, err := measure.LoadNow(ctx)
	if err != nil {
		return "", 0, err
	}
	state = fmt.Sprintf("Before the run the load average was %.2f, and %.0f %% of the processors were in use.", load.Average, 100*load.Busy)
	fmt.Fprintln(progress, state)
	return state, load.Busy, nil
}

// mayWrite returns an error if figures would be written although the machine is busy.
func mayWrite(write, anyway bool, busy float64, when string) error {
	if !write || anyway || busy <= measure.MaxBusy {
		return nil
	}
	return fmt.Errorf("%.0f %% of the processors were %s: nothing is written; stop other programs, or say --anyway", 100*busy, when)
}

// writeDocument puts text into a section of a document. An empty text only checks that this is possible.
func writeDocument(document string, section table.Section, text string) error {
	content, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	replaced, err := section.Replace(string(content), text)
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	if text == "" {
		return nil
	}
	return os.WriteFile(document, []byte(replaced), 0o644)
}

// modules are those whose versions matter.
var modules = []string{
	"github.com/bsm/redislock", "github.com/redis/go-redis/v9", "github.com/redis/rueidis",
	"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "go.etcd.io/etcd/server/v3",
	"github.com/eclipse/paho.golang", "github.com/mochi-mqtt/server/v2",
}

// notes say on what was measured, and what else the machine did.
func notes(ctx context.Context, before string, others float64) []string {
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
	return []string{
		machine(ctx, before, others),
		"Versions: " + strings.Join(versions, ", ") + ".",
	}
}

// machine says in a sentence or two on what was measured.
func machine(ctx context.Context, before string, others float64) string {
	model := "an unknown processor"
	if info, err := cpu.InfoWithContext(ctx); err == nil && len(info) > 0 {
		model = info[0].ModelName
	}
	return fmt.Sprintf("%d processors (%s), %s/%s. %s During the run other programs used %.0f %% of them.",
		runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, before, 100*others)
}
