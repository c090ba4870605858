// Command abuse attacks a server the way a hostile client would, and measures what a
// healthy client notices.
//
//	go run ./server/abuse                      # all attacks, as a table in Markdown
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
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"time"
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
	tenure, err := build(ctx, scratch)
	if err != nil {
		return err
	}
	r := runner{tenure: tenure, scratch: scratch, short: *short, duration: *duration, slack: 8 << 20}
	fmt.Printf("%d cores, %s/%s; attacks of %v and more; renewals p50 / p99 / max in ms; memory in MiB\n\n",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, r.duration)
	fmt.Println("| attack | renewals before | during | after | failed | leases lost | memory before | peak | after | log KiB " +
		"| server | what must hold | met |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
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
		if len(row.unmet) > 0 {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d attacks went beyond a limit", failed)
	}
	return nil
}

// build makes the command tenure in a folder and returns its path.
func build(ctx context.Context, folder string) (string, error) {
	const command = "github.com/tenurelock/tenure/cmd/tenure"
	path := filepath.Join(folder, "tenure.exe") // Windows needs the ending, the others take any
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, command).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}
