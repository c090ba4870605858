// Command walk prints how many functions, in how many files and packages, run while a client
// acquires a free lease of a server that keeps its data in memory, over MQTT and TCP.
//
//	go run ./server/walk      # the numbers
//	go run ./server/walk -v   # the functions too
//
// It runs at the root of the repository. It runs itself again, compiled with counters of coverage
// in all code of the repository. They are set to zero before the Acquire. A function has run if a
// block of it has; a function literal counts to the function around it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

const (
	repository = "github.com/tenurelock/tenure/"
	settling   = 100 * time.Millisecond // what a request leaves to do is done
	patience   = 10 * time.Minute       // where nothing is compiled yet
)

func main() {
	list := flag.Bool("v", false, "list the functions")
	into := flag.String("into", "", "folder for the counters of one Acquire; only in a program that has counters")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	var functions []string
	var err error
	if *into != "" {
		err = serveAndAcquire(ctx, *into)
	} else if functions, err = measure(ctx); err == nil {
		if *list {
			fmt.Println(strings.Join(functions, "\n"))
		}
		fmt.Printf("%s (budget: 160 in 35)\n", sum(functions))
	}
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func sum(functions []string) string {
	files, packages := make(map[string]bool), make(map[string]bool)
	for _, f := range functions {
		file, _, _ := strings.Cut(f, " ")
		files[file], packages[path.Dir(file)] = true, true
	}
	return fmt.Sprintf("%d functions in %d files of %d packages", len(functions), len(files), len(packages))
}

func serveAndAcquire(ctx context.Context, folder string) error {
	s, err := server.Open(ctx, server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving) }() // ends with serving
	client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{ClientID: "walk"})
	if err == nil {
		err = errors.Join(acquire(ctx, client, folder), client.Close())
	}
	stop()
	return errors.Join(err, <-served)
}

// acquire writes the counters of one Acquire.
func acquire(ctx context.Context, client *transport.Client, folder string) error {
	l, err := lease.New(client, "walk", lease.Options{})
	if err != nil {
		return err
	}
	// What a connection does once is over then.
	if _, err := client.Get(ctx, "other"); err != nil {
		return err
	}
	time.Sleep(settling)
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	tenure, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	time.Sleep(settling)
	return errors.Join(coverage.WriteMetaDir(folder), coverage.WriteCountersDir(folder), tenure.Release(ctx))
}

// measure returns what runs of a process that has counters and acquires, each function after its file.
func measure(ctx context.Context) (functions []string, err error) {
	folder, err := os.MkdirTemp("", "walk")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	counters := filepath.Join(folder, "acquire")
	if err := os.Mkdir(counters, 0o700); err != nil {
		return nil, err
	}
	process := exec.CommandContext(ctx, "go", "run", "-cover", "-covermode=atomic",
		"-coverpkg="+repository+"...", "./server/walk", "-into", counters)
	process.Env = append(os.Environ(), "GOCOVERDIR="+folder) // what it writes when it exits
	process.Stdout, process.Stderr = os.Stderr, os.Stderr
	if err := process.Run(); err != nil {
		return nil, fmt.Errorf("acquire with counters: %w", err)
	}
	table, err := exec.CommandContext(ctx, "go", "tool", "covdata", "func", "-i="+counters).Output()
	for _, f := range row.FindAllStringSubmatch(string(table), -1) {
		if path.Dir(f[1]) != "server/walk" {
			functions = append(functions, f[1]+" "+f[2])
		}
	}
	return functions, err
}

// row is a line that "go tool covdata func" prints for a function of which at least 0.1 % has run.
var row = regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(repository) +
	`(\S+\.go):\d+:\s+(\S+)\s+(?:[1-9]\d*\.\d|0\.[1-9])%$`)
