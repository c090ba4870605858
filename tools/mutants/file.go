package main

import (
	"errors"
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

var guardsFormat = regexp.MustCompile(`^(invariants? \d+|promise \S)`)

// parseFile reads the mutants of one file. Text before the first "== " is a comment.
func parseFile(text string) (mutants []*mutant, err error) {
	for i, entry := range strings.Split("\n"+text, "\n== ") {
		if i == 0 {
			continue
		}
		m, err := parseMutant(entry)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", m.name, err)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

func parseMutant(entry string) (*mutant, error) {
	name, rest, _ := strings.Cut(entry, "\n")
	m := &mutant{name: strings.TrimSpace(name)}
	inNew := true
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, " \t\n")
		if line == "" {
			continue
		}
		if line[0] == '-' || line[0] == '+' {
			if line[0] == '-' && inNew {
				m.changes = append(m.changes, change{})
			}
			inNew = line[0] == '+'
			if len(m.changes) == 0 {
				return m, errors.New("a line with + before any with -")
			}
			last := &m.changes[len(m.changes)-1]
			if inNew {
				last.new += line[1:] + "\n"
			} else {
				last.old += line[1:] + "\n"
			}
			continue
		}
		word, value, _ := strings.Cut(line, " ")
		value = strings.TrimSpace(value)
		switch word {
		case "guards":
			m.guards = value
		case "in":
			m.folder, m.declaration, _ = strings.Cut(value, " ")
		case "test":
			m.test = strings.Fields(value)
		default:
			return m, fmt.Errorf("a line begins with %q: want guards, in, test, - or +", word)
		}
	}
	switch {
	case !guardsFormat.MatchString(m.guards):
		return m, fmt.Errorf("guards %q: want invariant and its number, or promise and its words", m.guards)
	case m.declaration == "":
		return m, errors.New("in: want a folder and a declaration")
	case len(m.test) < 3 || m.test[1] != "-run":
		return m, errors.New("test: want a package, -run and a pattern")
	case len(m.changes) == 0:
		return m, errors.New("it changes nothing")
	}
	return m, nil
}
