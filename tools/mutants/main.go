// Command mutants breaks guarded code, one place at a time, and reports which tests notice.
// A mutant that survives marks a promise or an invariant that no test guards.
//
//	go run ./tools/mutants -check          # is each mutant still found? takes a second
//	go run ./tools/mutants -only renewal   # break what matches a regular expression
//
// It runs at the root of the repository. It changes no file: "go test -overlay" compiles the
// mutated source in place of the original.
//
// # Files of mutants
//
// Each *.txt file beside this one lists mutants of one area:
//
//	== a waiter relies on notifications alone
//	guards invariant 25
//	in     lease waiter.wait
//	test   ./lease -run TestInvariant25
//	- case <-poll.C:
//	+ case <-never:
//
// "guards" names the invariant, or "promise" and a promise of the documentation. "in" is the
// folder of a package and a declaration at its top level: a function, Type.Method, a type, a
// constant or a variable. "test" are the arguments of the go test that must fail.
//
// The lines with a minus sign are one node of Go syntax in that declaration, such as an
// expression, a statement or a case, or several statements in a row. White space, comments
// and trailing commas do not count, and it must occur once. The lines with a plus sign
// replace it; without any, it is deleted. Several such pairs may follow each other. So a
// mutant survives moves between files and reformatting, but not a rename: -check, which is
// part of "make check", then says what it looks for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	check := flag.Bool("check", false, "only look whether each mutant and its test are found")
	only := flag.String("only", "", "regular expression that a mutant's name, guard, package or test must match")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *check); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, checkOnly bool) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	mutants, err := readFolder(filepath.Join("tools", "mutants"))
	if err != nil {
		return err
	}
	source := newTree()
	want, total, missed := killed, 0, 0
	if checkOnly {
		want = found
	}
	for _, m := range mutants {
		if !m.matches(chosen) {
			continue
		}
		began := time.Now()
		v, detail := try(ctx, source, m, checkOnly)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		total++
		if v != want {
			missed++
		}
		if !checkOnly || v != found {
			fmt.Printf("%-16s %4.1fs  %s (%s)\n", v, time.Since(began).Seconds(), m.name, m.guards)
		}
		if detail != "" {
			fmt.Println("    " + strings.ReplaceAll(strings.TrimSpace(detail), "\n", "\n    "))
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d mutants are not %s", missed, total, want)
	}
	fmt.Printf("%d of %d mutants are %s\n", total, total, want)
	return nil
}
