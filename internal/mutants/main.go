// Command mutants breaks rules on purpose, one at a time, and reports which tests
// notice. A rule whose mutant survives is a rule that no test guards.
//
//	go run ./internal/mutants internal/mutants/statestore.txt
//
// A file of mutants begins with the command that must fail, and goes on with the
// mutants: a name, a file, what stands there once and nowhere else, and what to put in
// its place.
//
//	$ go test ./statestore -run FollowsTheProtocol
//
//	== NX is ignored
//	-- statestore/store.go
//	<<<<
//	refused := command.Condition == IfMissing ||
//	====
//	refused := false ||
//	>>>>
//
// A command with a time limit (go test -timeout) notices a mutant that hangs.
//
// Nothing is changed in place: each mutant lives in a copy of the tree.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	rows := flag.Bool("rows", false, "list every test that noticed, not only how many")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: mutants [-rows] FILE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	survivors := 0
	for _, path := range flag.Args() {
		n, err := run(path, *rows)
		if err != nil {
			fmt.Fprintf(os.Stderr, "mutants: %s: %v\n", path, err)
			os.Exit(1)
		}
		survivors += n
	}
	if survivors > 0 {
		fmt.Printf("%d survived\n", survivors)
		os.Exit(1)
	}
}

type mutant struct{ name, file, old, changed string }

// parse reads a file of mutants.
func parse(text string) (command []string, mutants []mutant, err error) {
	head, rest, _ := strings.Cut(text, "\n== ")
	for line := range strings.Lines(head) {
		if after, ok := strings.CutPrefix(line, "$ "); ok {
			command = strings.Fields(after)
		}
	}
	if len(command) == 0 {
		return nil, nil, errors.New("no line says which command must fail: $ go test …")
	}
	for _, part := range strings.Split(rest, "\n== ") {
		fields := regexp.MustCompile(`(?s)^(.*?)\n-- (.*?)\n<<<<\n(.*?)\n====\n(.*?)\n?>>>>`).FindStringSubmatch(part)
		if fields == nil {
			return nil, nil, fmt.Errorf("this is no mutant:\n%s", part)
		}
		mutants = append(mutants, mutant{fields[1], fields[2], fields[3], fields[4]})
	}
	return command, mutants, nil
}

// run tries the mutants of one file and returns how many survived.
func run(path string, rows bool) (survivors int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	command, mutants, err := parse(string(text))
	if err != nil {
		return 0, err
	}
	tree, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tree)
	if err := os.CopyFS(tree, os.DirFS(".")); err != nil {
		return 0, err
	}
	if out, failed := test(tree, command); failed {
		return 0, fmt.Errorf("the tests fail without any mutant:\n%s", out)
	}
	for _, m := range mutants {
		noticed, err := try(tree, command, m)
		if err != nil {
			survivors++
			fmt.Printf("NO MUTANT %s: %v\n", m.name, err)
			continue
		}
		if len(noticed) == 0 {
			survivors++
			fmt.Printf("SURVIVED  %s\n", m.name)
			continue
		}
		fmt.Printf("noticed   %s: %d, first by %q\n", m.name, len(noticed), noticed[0])
		if rows {
			fmt.Println("            " + strings.Join(noticed, "\n            "))
		}
	}
	return survivors, nil
}

var (
	failed = regexp.MustCompile(`(?m)^ *--- FAIL: (.*) \(`)
	// A test that hangs or brings down the program says so in words of its own.
	running = regexp.MustCompile(`(?m)^panic: test timed out.*\n\trunning tests:\n\t\t(.*) \(`)
)

// noticedBy returns the tests that failed. The rows of a table say more than the name of
// their test, so they stand in its place.
func noticedBy(out string) (tests []string) {
	var names []string
	for _, pattern := range []*regexp.Regexp{failed, running} {
		for _, match := range pattern.FindAllStringSubmatch(out, -1) {
			names = append(names, match[1])
		}
	}
	for _, name := range names {
		isRow := func(other string) bool { return strings.HasPrefix(other, name+"/") }
		if !slices.ContainsFunc(names, isRow) {
			tests = append(tests, strings.ReplaceAll(name, "_", " "))
		}
	}
	return tests
}

// try applies one mutant, tests, and takes it back.
func try(tree string, command []string, m mutant) (noticed []string, err error) {
	path := filepath.Join(tree, m.file)
	original, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(original), m.old); n != 1 {
		return nil, fmt.Errorf("%s: its text stands in %s %d times, not once", m.name, m.file, n)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(original), m.old, m.changed, 1)), 0o644); err != nil {
		return nil, err
	}
	out, isRed := test(tree, command)
	if err := os.WriteFile(path, original, 0o644); err != nil {
		return nil, err
	}
	if !isRed {
		return nil, nil
	}
	noticed = noticedBy(out)
	if len(noticed) == 0 {
		return nil, fmt.Errorf("%s: the command failed, but no test did; does it compile?\n%s", m.name, out)
	}
	return noticed, nil
}

func test(tree string, command []string) (out string, failed bool) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = tree
	text, err := cmd.CombinedOutput()
	return string(text), err != nil
}
