package transporttest

import (
	"testing"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

func TestTheJournalOfATestIsAJournal(t *testing.T) {
	statestoretest.RunJournal(t, func(*testing.T) func() statestore.Journal {
		journal := new(Journal)
		return func() statestore.Journal { return journal.open() }
	})
}
