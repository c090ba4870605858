// Command abuse attacks a server the way a hostile client would, and measures what a
// healthy client notices.
//
//	go run ./server/abuse                      # all attacks, as a table in Markdown
//	go run ./server/abuse -only login -short   # some of them, with less of everything
//
// Each attack has four processes to itself: this one, which starts and measures the others;
// `tenure serve`, so that the memory of this process is the server's alone; a healthy client, which
// holds a lease and renews another every few milliseconds; and the attacker. All of it is on
// loopback and bounded in time, connections and memory.
//
// On a machine with few cores a local attacker takes processor time from the server, which a remote
// one cannot. So the attacker uses one core.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	if done, code := runTask(); done {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "abuse:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var (
		only     = flag.String("only", "", "regular expression: which attacks, by name")
		short    = flag.Bool("short", false, "less of everything, as the tests do")
		duration = flag.Duration("duration", 0, "how long an attack goes on; default 8s, or 1s with -short")
		slack    = flag.Int64("slack", 8, "MiB that the server may keep beyond 1.5 times what it had before")
		tenure   = flag.String("tenure", "", "the command tenure; default: build it")
		list     = flag.Bool("list", false, "list the attacks, as rows of a table in Markdown")
	)
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *list {
		for _, a := range attacks() {
			fmt.Printf("| %s | %s |\n", cell(a.name), cell(strings.TrimSuffix(a.what, ".")))
		}
		return nil
	}
	scratch, err := os.MkdirTemp("", "abuse-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if *duration == 0 {
		*duration = fullDuration
		if *short {
			*duration = shortDuration
		}
	}
	if *tenure == "" {
		if *tenure, err = build(ctx, scratch); err != nil {
			return err
		}
	}
	r := runner{tenure: *tenure, scratch: scratch, short: *short, duration: *duration, slack: *slack << 20}
	failed := 0
	writeHeader(os.Stdout, &r)
	for _, a := range attacks() {
		if !chosen.MatchString(a.name) {
			continue
		}
		row, err := r.run(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		row.write(os.Stdout)
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

// errBreach marks the error of an attack that passed a limit of the server.
var errBreach = errors.New("limit passed")

func breach(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errBreach}, args...)...)
}

// Defaults of a full run and of a short one.
const (
	fullDuration  = 8 * time.Second
	shortDuration = time.Second
)
