// Command abuse attacks a server the way a hostile client would, and measures what a
// healthy client notices.
//
//	go run ./server/abuse                      # all attacks
//	go run ./server/abuse -only login -short   # some of them, with less of everything
//
// Each attack has three processes to itself: this one, with a healthy client, which holds a lease and
// renews another every few milliseconds; `tenure serve`, so that the memory of its process is the
// server's alone; and the attacker. All of it is on loopback and bounded in time, connections and
// memory.
//
// On a machine with few cores a local attacker takes processor time from the server, which a remote
// one cannot. So the attacker uses one core.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"time"

	"github.com/tenurelock/tenure/internal/compiled"
)

func main() {
	beChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "abuse:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	only := flag.String("only", "", "regular expression: which attacks, by name")
	short := flag.Bool("short", false, "less of everything, as the tests do")
	duration := flag.Duration("duration", 8*time.Second, "how long an attack goes on")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	scratch, err := os.MkdirTemp("", "abuse-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	built := compiled.Program{Folder: "cmd/tenure"}
	defer built.Remove()
	tenure, err := built.Build()
	if err != nil {
		return err
	}
	r := runner{tenure: tenure, scratch: scratch, short: *short, duration: *duration, slack: 8 << 20}
	fmt.Printf("%d cores, %s/%s; attacks of %v and more; renewals as p50 / p99 / max\n", runtime.NumCPU(),
		runtime.GOOS, runtime.GOARCH, r.duration)
	failed := 0
	for _, a := range attacks() {
		if !chosen.MatchString(a.name) {
			continue
		}
		row, err := r.run(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		fmt.Println(row)
		if len(row.lethal)+len(row.late) > 0 {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d attacks went beyond a limit", failed)
	}
	return nil
}
