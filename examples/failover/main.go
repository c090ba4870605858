//go:build unix || windows

// Command failover shows an active/standby pair that fails over, over real MQTT.
//
//	go run ./examples/failover
//
// It runs a state store, and two node processes that campaign for one lease. The active
// node writes a protected key every 20 ms. Then the program kills the active node;
// freezes the next one, and wakes it when the other node leads; and asks the third to resign.
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
// that tenure attach has attached to any MQTT 5 broker. With --repeat 20 the program does
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

// settings are the flags.
type settings struct {
	broker  string
	ttl     time.Duration
	repeat  int
	node    string // set in a node process: its name
	instant bool   // set in a node process that leaves a Will
	run     string // distinguishes the keys of this run
}

func main() {
	var s settings
	flag.StringVar(&s.broker, "broker", "", "use the store behind this broker, such as mqtt://localhost:1883, or "+
		"several with commas between them, instead of starting one")
	flag.DurationVar(&s.ttl, "ttl", 2*time.Second, "how long the lease of a dead node lasts")
	flag.IntVar(&s.repeat, "repeat", 1, "run several times, and report the worst of each fault")
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

func run(ctx context.Context, s settings) error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	case s.node != "":
		return runNode(ctx, s)
	}
	out := io.Writer(os.Stdout)
	if s.repeat > 1 { // no timelines
		out = io.Discard
	}
	var all []*result
	passed := true
	for n := range s.repeat {
		r, err := direct(ctx, s, out)
		if err != nil {
			return fmt.Errorf("run %d: %w", n+1, err)
		}
		all = append(all, r)
		fmt.Printf("\nrun %d of %d:\n", n+1, s.repeat)
		passed = r.conclude(os.Stdout) && passed
	}
	err := summarize(os.Stdout, all)
	if err == nil && !passed {
		err = errors.New("a check failed")
	}
	return err
}
