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
// that. --freeze=false leaves the fault out on any system.
//
// With --broker the nodes use a store that runs already: the one of tenure serve, or one
// that tenure attach has attached to any MQTT 5 broker. That store is not killed. With --repeat 20 the program does
// everything twenty times, and prints the median and the worst of each fault.
package main

import (
	"context"
	"encoding/json"
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
	json    bool
	verbose bool
	repeat  int
	freeze  bool
	store   *store // nil with --broker
	dir     string // set in a store process: where its data is
	node    string // set in a node process: its name
	instant bool   // set in a node process that leaves a Will
	run     string // distinguishes the keys of this run
}

func main() {
	var s settings
	flag.StringVar(&s.broker, "broker", "", "use the store behind this broker, such as mqtt://localhost:1883, mqtts://, ws:// or wss://, or several with commas between them, instead of starting one")
	flag.DurationVar(&s.ttl, "ttl", 2*time.Second, "how long the lease of a dead node lasts")
	flag.BoolVar(&s.json, "json", false, "print the result as JSON; the timeline goes to standard error")
	flag.IntVar(&s.repeat, "repeat", 1, "run several times, and report the worst of each fault")
	flag.BoolVar(&s.freeze, "freeze", canFreeze, "freeze a node and wake it after the other has taken over, which Windows cannot do")
	flag.BoolVar(&s.verbose, "verbose", false, "let the nodes log to standard error")
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
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	}
	if s.freeze && !canFreeze {
		return errors.New("this system cannot freeze a process; remove --freeze")
	}
	if s.dir != "" {
		return runStore(ctx, s.dir, s.broker, os.Stdin, os.Stdout)
	}
	if s.node != "" {
		return runNode(ctx, s)
	}
	timeline := io.Writer(os.Stdout)
	if s.json {
		timeline = os.Stderr
	}
	if s.broker == "" {
		store, err := newStore()
		if err != nil {
			return err
		}
		defer store.remove()
		s.store, s.broker = store, store.address
		fmt.Fprintf(timeline, "A state store of our own listens on %s, with its data on disk.\n", s.broker)
	}
	if s.repeat > 1 {
		return repeat(ctx, s, timeline)
	}
	r, err := direct(ctx, s, timeline)
	if err != nil {
		return err
	}
	return conclude(s, r)
}

// report is a result or a summary.
type report interface {
	ok() bool
	write(io.Writer) error
}

// conclude prints a report as text or JSON, and fails if a check failed.
func conclude(s settings, r report) error {
	var err error
	if s.json {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(r)
	} else {
		err = r.write(os.Stdout)
	}
	if err == nil && !r.ok() {
		err = errChecksFailed
	}
	return err
}

// repeat runs all steps several times, and prints a line for each run in place of its
// timeline.
func repeat(ctx context.Context, s settings, progress io.Writer) error {
	total := &summary{TTL: s.ttl}
	for n := range s.repeat {
		r, err := direct(ctx, s, io.Discard)
		if err != nil {
			return fmt.Errorf("run %d: %w", n+1, err)
		}
		fmt.Fprintf(progress, "run %*d of %d:", len(fmt.Sprint(s.repeat)), n+1, s.repeat)
		for _, f := range r.Faults[1:] {
			fmt.Fprintf(progress, "  %s %v", f.Name, round(f.Gap))
		}
		fmt.Fprintf(progress, "  stale writes %d\n", r.Stale)
		for _, c := range r.Checks {
			if !c.OK {
				fmt.Fprintf(progress, "  FAIL  %s (%s)\n", c.Name, c.Detail)
			}
		}
		total.add(r)
	}
	return conclude(s, total)
}
