//go:build unix

// Command failover shows two gateways and a witness, as docs/pair.md sets them up, while they fail.
//
//	cd cluster && go run ./failover
//
// It runs the command tenure-cluster three times: as two stores, each with a member of etcd inside,
// and as the witness. Beside each store runs a node of the pair of examples/failover: the one that
// leads counts up a protected key. As root on Linux each of the three machines is a network namespace
// on a bridge. Elsewhere all are on loopback, and the steps that need a network are left out.
//
// Each step is one fault. The program measures for how long no write of a client was answered, what
// became of the lease of the node that leads, and how long it takes until the other node leads after
// the machine of both was lost. Meanwhile it asks each store every 10 ms over a connection of its own.
//
// It prints a table and what it checked: no write that a store had answered was lost, none of a node
// that no longer led was accepted, and two stores never answered at once. Its exit status is 1 if a
// check failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/internal/pair"
)

// settings are the flags.
type settings struct {
	ttl     time.Duration // of the lease
	short   time.Duration // the same with instant failover
	repeat  int
	only    *regexp.Regexp
	network string
	logs    string
	idle    time.Duration // 0: the steps

	// Of the nodes that the program starts.
	node    string
	stores  string
	instant bool
}

func main() {
	s := settings{only: regexp.MustCompile("")}
	flag.DurationVar(&s.ttl, "ttl", 3500*time.Millisecond, "how long the lease of a dead node lasts")
	flag.DurationVar(&s.short, "instant-ttl", 2*time.Second, "the same with instant failover: half of it counts when the store is lost too")
	flag.IntVar(&s.repeat, "repeat", 1, "how often each step is done")
	flag.Func("only", "regular expression: the steps to do", func(text string) (err error) {
		s.only, err = regexp.Compile(text)
		return err
	})
	flag.StringVar(&s.network, "network", "", "namespaces: each machine in a network namespace, which needs root and iproute2; loopback: all on this machine; default: namespaces where that works")
	flag.StringVar(&s.logs, "logs", "", "directory for the logs of all processes, which are kept")
	flag.DurationVar(&s.idle, "idle", 0, "in place of the steps, let 200 leases renew for so long, and print what each member writes to its disk")
	flag.StringVar(&s.node, "node", "", "run as the node with this name (the program starts itself so)")
	flag.StringVar(&s.stores, "stores", "", "addresses for a node")
	flag.BoolVar(&s.instant, "instant", false, "instant failover of a node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		stop()
		os.Exit(1)
	}
}

var (
	errChecksFailed = errors.New("a check failed")
	errInterrupted  = errors.New("interrupted")
)

func run(ctx context.Context, s settings) error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	case s.repeat < 1:
		return fmt.Errorf("--repeat %d: give 1 or more", s.repeat)
	case s.node != "":
		return runNode(ctx, s)
	}
	result, err := direct(ctx, s, os.Stdout)
	if result != nil {
		err = errors.Join(err, result.write(os.Stdout))
	}
	if err == nil && result != nil && !result.checks.OK() {
		err = errChecksFailed
	}
	return err
}

// pairRun names the keys of the pair. The store is the program's own, so one name serves.
const pairRun = "replicated"

// runNode campaigns until ctx or standard input ends, and writes events to standard output.
func runNode(ctx context.Context, s settings) error {
	return pair.RunNode(ctx, pair.Options{
		Node:            s.node,
		Run:             pairRun,
		Stores:          s.stores,
		TTL:             s.ttl,
		InstantFailover: s.instant,
		Logger:          slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}, os.Stdin, os.Stdout)
}
