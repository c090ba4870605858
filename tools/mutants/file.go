package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A mutant is one entry of a file of mutants.
type mutant struct {
	name        string
	guards      string   // "invariant 1" or "promise …"
	folder      string   // of the package, from the root of the repository
	declaration string   // in that package
	test        []string // arguments of go test
	changes     []change
}

// A change replaces one node of syntax, or several statements in a row.
type change struct{ old, new string }

func (m *mutant) matches(pattern *regexp.Regexp) bool {
	for _, text := range []string{m.name, m.guards, m.folder, strings.Join(m.test, " ")} {
		if pattern.MatchString(text) {
			return true
		}
	}
	return false
}

// readFolder reads the files of mutants of a folder, in the order of their names.
func readFolder(folder string) ([]*mutant, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no *.txt in %s: run it at the root of the repository", folder)
	}
	var all []*mutant
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mutants, err := parseFile(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, mutants...)
	}
	return all, nil
}

var (
	entryFormat = regexp.MustCompile(
		`^(.+)\nguards +((?:invariants? \d|promise \S).*)\nin +(\S+) +(\S+)\ntest +(\S+ -run \S.*)\n((?:-.*\n|\+.*\n)+)\s*$`)
	// changeFormat is lines to replace, and those in their place.
	changeFormat = regexp.MustCompile(`((?:-.*\n)+)((?:\+.*\n)*)`)
	mark         = regexp.MustCompile(`(?m)^[-+]`)
)

// parseFile reads the mutants of one file. Text before the first "== " is a comment.
func parseFile(text string) (mutants []*mutant, err error) {
	entries := strings.Split("\n"+text+"\n", "\n== ")
	for _, entry := range entries[1:] {
		parts := entryFormat.FindStringSubmatch(entry)
		if parts == nil || parts[6][0] != '-' {
			return nil, fmt.Errorf("want a name, guards (invariant and its number, or promise and its words), in (a folder "+
				"and a declaration), test (a package, -run and a pattern), and lines with - and +:\n%s", entry)
		}
		m := &mutant{name: parts[1], guards: parts[2], folder: parts[3], declaration: parts[4],
			test: strings.Fields(parts[5])}
		for _, c := range changeFormat.FindAllStringSubmatch(parts[6], -1) {
			m.changes = append(m.changes, change{mark.ReplaceAllString(c[1], ""), mark.ReplaceAllString(c[2], "")})
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}
