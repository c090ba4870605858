//go:build unix || windows

// Command failover shows an active/standby pair that fails over, over real MQTT.
//
//	go run ./examples/failover
//
// It starts a state store and two node processes that campaign for one lease. The active
// node counts up a protected key every 20 ms. Then the program kills the active node;
// freezes the next one, and wakes it when the other node leads; asks the third to resign; and
// kills the store; the leader goes on leading because the store keeps its data on disk.
// Finally it restarts both with instant failover, and kills the active node again.
// Meanwhile it prints what happens. At the end it prints how long each fault left the pair
// without an active node, and whether all checks passed: above all, that the store accepted
// no write of a node that no longer led. Its exit status is 1 if a check failed.
//
// Windows cannot freeze a process. There this fault is left out, and with it the late write,
// which shows that the store refuses a node that no longer leads: use another system for
// that.
//
// With --broker the nodes use a store that runs already: the one of tenure serve, or one
// that tenure attach has attached to any MQTT 5 broker. That store is not killed. With --repeat 20 the program does
// everything twenty times, and prints the median and the worst of each fault.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settings are the flags, and what a test sets.
type settings struct {
	broker  string
	ttl     time.Duration
	repeat  int
	freeze  bool
	dir     string // set in a store process: where its data is
	node    string // set in a node process: its name
	instant bool   // set in a node process that leaves a Will
	run     string // distinguishes the keys of this run
}

func main() {
	s := settings{freeze: canFreeze}
	flag.StringVar(&s.broker, "broker", "", "use the store behind this broker, such as mqtt://localhost:1883, mqtts://, ws:// or wss://, or several with commas between them, instead of starting one")
	flag.DurationVar(&s.ttl, "ttl", 2*time.Second, "how long the lease of a dead node lasts")
	flag.IntVar(&s.repeat, "repeat", 1, "run several times, and report the worst of each fault")
	flag.StringVar(&s.dir, "store", "", "run as the store, with its data in this directory (the program starts itself so)")
	flag.StringVar(&s.node, "node", "", "run as one of the nodes (the program starts itself so)")
	flag.BoolVar(&s.instant, "instant", false, "let a node's connection release the lease when it is lost")
	flag.StringVar(&s.run, "run", "", "name of the run that a node belongs to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		stop()
		os.Exit(1)
	}
}

var errChecksFailed = errors.New("a check failed")

func run(ctx context.Context, s settings) error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	case s.dir != "":
		return runStore(ctx, s)
	case s.node != "":
		return runNode(ctx, s)
	case s.repeat > 1:
		return repeat(ctx, s)
	}
	r, err := direct(ctx, s, os.Stdout)
	if err != nil {
		return err
	}
	err = r.write(os.Stdout)
	if err == nil && len(r.failed()) > 0 {
		err = errChecksFailed
	}
	return err
}

// repeat runs all steps several times, and prints a line for each run in place of its timeline.
func repeat(ctx context.Context, s settings) error {
	var all []*result
	failed := 0
	for n := range s.repeat {
		r, err := direct(ctx, s, io.Discard)
		if err != nil {
			return fmt.Errorf("run %d: %w", n+1, err)
		}
		all = append(all, r)
		if len(r.failed()) > 0 {
			failed++
		}
		fmt.Printf("run %d of %d: stale writes accepted: %d, failed checks: %q\n", n+1, s.repeat, r.stale, r.failed())
	}
	err := summarize(os.Stdout, all, failed)
	if err == nil && failed > 0 {
		err = errChecksFailed
	}
	return err
}
