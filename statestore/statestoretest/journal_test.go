package statestoretest

import (
	"context"
	"runtime"
	"slices"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// mapJournal is a journal in memory. Its flaw, if it has one, is what RunJournal must find.
type mapJournal struct {
	records map[string][]byte
	flaw    string
}

func (m *mapJournal) Load(_ context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	var failed error
	for id, value := range m.records {
		if m.flaw != "it gives its own bytes away" {
			value = slices.Clone(value)
		}
		for range map[bool]int{false: 1, true: 2}[m.flaw == "it loads records twice"] {
			if err := each(statestore.Record{ID: []byte(id), Value: value}); err != nil {
				failed = err
				switch m.flaw {
				case "it goes on after an error":
				case "it hides an error":
					return former, nil
				default:
					return former, err
				}
			}
		}
	}
	return former, failed
}

func (m *mapJournal) Commit(_ context.Context, batch []statestore.Group) error {
	if m.flaw == "it loses the last group" && len(batch) > 1 {
		batch = batch[:len(batch)-1]
	}
	for _, group := range batch {
		if m.flaw == "it writes a group in the reverse order" {
			group = slices.Clone(group)
			slices.Reverse(group)
		}
		for _, record := range group {
			id := string(record.ID)
			if m.flaw == "it cuts long IDs" {
				id = id[:min(len(id), 255)]
			}
			switch {
			case record.Value != nil && m.flaw == "it keeps the bytes of a batch":
				m.records[id] = record.Value
			case record.Value != nil:
				m.records[id] = slices.Clone(record.Value)
			case m.flaw == "it deletes nothing":
			default:
				delete(m.records, id)
			}
			if m.flaw == "an empty value is none" && len(record.Value) == 0 {
				delete(m.records, id)
			}
		}
	}
	return nil
}

func (m *mapJournal) Standing() error { return nil }
func (m *mapJournal) Close() error    { return nil }

func startMap(flaw string) func() statestore.Journal {
	journal := &mapJournal{records: make(map[string][]byte), flaw: flaw}
	return func() statestore.Journal { return journal }
}

func TestAJournalInMemoryIsAJournal(t *testing.T) {
	RunJournal(t, func(*testing.T) func() statestore.Journal { return startMap("") })
}

// A quietTB notes that a test failed.
type quietTB struct {
	testing.TB
	failed bool
}

func (q *quietTB) Helper()               {}
func (q *quietTB) Errorf(string, ...any) { q.failed = true }
func (q *quietTB) Failed() bool          { return q.failed }
func (q *quietTB) Fatal(...any)          { q.FailNow() }
func (q *quietTB) Fatalf(string, ...any) { q.FailNow() }

func (q *quietTB) FailNow() {
	q.failed = true
	runtime.Goexit()
}

func TestAFlawOfAJournalIsFound(t *testing.T) {
	for _, flaw := range []string{
		"it gives its own bytes away", "it loads records twice", "it goes on after an error", "it hides an error",
		"it loses the last group", "it writes a group in the reverse order", "it cuts long IDs", "it keeps the bytes of a batch",
		"it deletes nothing", "an empty value is none",
	} {
		t.Run(flaw, func(t *testing.T) {
			var found []string
			for _, test := range journalTests {
				quiet := &quietTB{TB: t}
				done := make(chan struct{})
				go func() {
					defer close(done)
					test.check(&journalTest{TB: quiet, open: startMap(flaw), want: make(map[string]string)})
				}()
				await.Receive(done)
				if quiet.failed {
					found = append(found, test.name)
				}
			}
			if len(found) == 0 {
				t.Error("no test fails")
			}
			t.Logf("found by %q", found)
		})
	}
}
