package statestoretest

import (
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/statestore"
)

//go:embed rows/*.txt
var files embed.FS

// row is one rule of the protocol.
type row struct {
	section  string // of docs/protocol.md
	sentence string
	options  statestore.Options
	steps    []step
}

// Run runs each row of the table as a subtest. For each row it calls with, which makes a new
// store with the options and calls check once with it; with may do so in a testing/synctest
// bubble. Run skips rows whose requests the clients of the store cannot send.
func Run(t *testing.T, with func(t *testing.T, options statestore.Options, check func(*testing.T, Store))) {
	t.Helper()
	rows, err := loadRows()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Run(r.section+": "+r.sentence, func(t *testing.T) {
			checked := false
			with(t, r.options, func(t *testing.T, store Store) {
				checked = true
				r.check(t, store)
			})
			if !checked {
				t.Error("the row was not checked")
			}
		})
	}
}

func (r row) check(t *testing.T, store Store) {
	t.Helper()
	if err := newPlayer(t, store).play(r.steps); errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Error(err)
	}
}

func loadRows() ([]row, error) {
	entries, err := files.ReadDir("rows")
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, entry := range entries {
		text, err := files.ReadFile("rows/" + entry.Name())
		if err != nil {
			return nil, err
		}
		more, err := parseRows(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// parseRows parses a file of rows: "== section | sentence", optionally "-- options", and the
// script. Text before the first row is a comment.
func parseRows(text string) ([]row, error) {
	var rows []row
	for _, part := range strings.Split("\n"+text, "\n== ")[1:] {
		title, script, _ := strings.Cut(part, "\n")
		section, sentence, ok := strings.Cut(title, " | ")
		if !ok {
			return nil, fmt.Errorf("row %q: no section", title)
		}
		r := row{section: section, sentence: sentence}
		if options, rest, ok := strings.Cut(script, "\n"); ok && strings.HasPrefix(options, "-- ") {
			script = rest
			if err := parseOptions(&r.options, options[len("-- "):]); err != nil {
				return nil, fmt.Errorf("row %q: %w", title, err)
			}
		}
		var err error
		if r.steps, err = parseScript(script); err != nil {
			return nil, fmt.Errorf("row %q: %w", title, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// parseOptions adds a row's options.
func parseOptions(o *statestore.Options, text string) error {
	numbers := map[string]*int{
		"max-keys":     &o.MaxKeys,
		"max-value":    &o.MaxValue,
		"max-watches":  &o.MaxWatches,
		"dedup-window": &o.DedupWindow,
	}
	for _, option := range strings.Fields(text) {
		name, value, _ := strings.Cut(option, "=")
		var err error
		switch {
		case numbers[name] != nil:
			*numbers[name], err = strconv.Atoi(value)
		case name == "max-bytes":
			o.MaxBytes, err = strconv.ParseInt(value, 10, 64)
		case name == "identity":
			o.Identity = value
		case name == "strict":
			o.Strict = true
		case name == "lock":
			o.LockPrefixes = append(o.LockPrefixes, value)
		case option == "dialect=documented":
			o.Dialect = statestore.Documented
		case option == "dialect=deployed":
			o.Dialect = statestore.Deployed
		default:
			err = fmt.Errorf("unknown option %q", option)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
