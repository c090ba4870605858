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

// settings are the flags.
type settings struct {
	quick, write, anyway bool
	document, only       string
	rounds, largest      int
}

// benchmark is one of the two that the command runs.
type benchmark struct {
	section  table.Section
	document string
	builds   string // for peer.Host.Build
	// prepare checks the flags. measure returns the tables, and the share of the processors that other
	// programs used, from 0 to 1.
	prepare func(s *settings, progress io.Writer) (measure func(context.Context, *peer.Host) (tables string, others float64, err error), err error)
}

var (
	peers  = benchmark{table.Peers, "../docs/performance.md", peer.Commands, preparePeers}
	scaled = benchmark{table.Growth, "../docs/scale.md", peer.TenureCommand, prepareGrowth}
)

// run runs "growth", or without a name the comparison of peers.
func run(ctx context.Context, arguments []string, out, progress io.Writer) error {
	b := peers
	if len(arguments) > 0 && arguments[0] == "growth" {
		b, arguments = scaled, arguments[1:]
	}
	s, err := b.parse(arguments, progress)
	if err != nil {
		return err
	}
	if s.write {
		// A document that cannot take the tables is found before minutes have passed.
		if err := writeDocument(s.document, b.section, ""); err != nil {
			return err
		}
	}
	measureAll, err := b.prepare(s, progress)
	if err != nil {
		return err
	}
	if busy, err := measure.Sample(ctx); err != nil {
		return err
	} else if err := s.mayWrite(busy, "in use before the run"); err != nil {
		return err
	}
	host, err := peer.NewHost()
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "building and starting the servers")
	if err := host.Build(ctx, b.builds); err != nil {
		return errors.Join(err, host.Close())
	}
	tables, others, err := measureAll(ctx, host)
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	text := fmt.Sprintf("%s During the run other programs used %.0f %% of them.\n\n%s", machine(ctx), 100*others, tables)
	if _, err := io.WriteString(out, text); err != nil || !s.write {
		return err
	}
	if err := s.mayWrite(others, "used by other programs during the run"); err != nil {
		return err
	}
	return writeDocument(s.document, b.section, text)
}

func (b benchmark) parse(arguments []string, progress io.Writer) (*settings, error) {
	s := &settings{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.BoolVar(&s.quick, "quick", false, "small sizes, and short times: shows that everything works, and no figures to quote")
	flags.BoolVar(&s.write, "write", false, "write the tables into --document")
	flags.StringVar(&s.document, "document", b.document, "the file for --write; it has lines between which the tables are")
	flags.BoolVar(&s.anyway, "anyway", false, "write the tables even if other programs use the processors")
	flags.StringVar(&s.only, "only", "", "measure only the peers, beside the reference, or what grows, whose names match this expression")
	if b.section == table.Peers {
		flags.IntVar(&s.rounds, "rounds", 5, "how many turns each peer has, with each operation and number in flight")
	} else {
		flags.IntVar(&s.largest, "largest", 0, "leave out sizes above this one; 0 leaves out none")
	}
	switch err := flags.Parse(arguments); {
	case err != nil:
		return nil, err
	case flags.NArg() > 0:
		return nil, fmt.Errorf("%q is no command: choose growth, or none for the peers", flags.Args())
	case s.rounds < 1 && b.section == table.Peers:
		return nil, fmt.Errorf("--rounds is %d; there must be one at least", s.rounds)
	}
	return s, nil
}

func preparePeers(s *settings, progress io.Writer) (func(context.Context, *peer.Host) (string, float64, error), error) {
	chosen, err := choose(s.only)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, host *peer.Host) (string, float64, error) {
		result, err := measure.Run(ctx, host, s.options(chosen, progress))
		if err != nil {
			return "", 0, err
		}
		report := &table.Report{Reference: peer.Reference, Rows: result.Rows}
		for _, p := range chosen {
			report.About = append(report.About, [2]string{p.Name, p.About})
		}
		return versions(ctx) + report.String(), result.Others, nil
	}, nil
}

// choose returns the reference and the peers whose names match.
func choose(only string) ([]*peer.Peer, error) {
	matches, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	chosen := slices.DeleteFunc(peer.All(), func(p *peer.Peer) bool {
		return p.Name != peer.Reference && !matches.MatchString(p.Name)
	})
	for _, p := range chosen {
		if err := p.Installed(); err != nil {
			return nil, err
		}
	}
	return chosen, nil
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

func prepareGrowth(s *settings, progress io.Writer) (func(context.Context, *peer.Host) (string, float64, error), error) {
	matches, err := regexp.Compile(s.only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	if s.write && s.only != "" && !s.anyway {
		return nil, errors.New("--write with --only would leave the other figures out of the document: say --anyway if that is meant")
	}
	options := growth.Options{Quick: s.quick, Largest: s.largest, Progress: progress}
	options.Subjects = slices.DeleteFunc(growth.All(), func(subject *growth.Subject) bool {
		return !matches.MatchString(subject.Name) || len(options.Sizes(subject)) == 0
	})
	if len(options.Subjects) == 0 {
		return nil, fmt.Errorf("--only %q and --largest %d leave nothing to measure", s.only, s.largest)
	}
	return func(ctx context.Context, host *peer.Host) (string, float64, error) {
		result, err := growth.Run(ctx, host, options)
		if err != nil {
			return "", 0, err
		}
		return result.String(), result.Others, nil
	}, nil
}

// mayWrite returns an error if figures would be written although the machine is busy.
func (s *settings) mayWrite(busy float64, when string) error {
	if !s.write || s.anyway || busy <= measure.MaxBusy {
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
