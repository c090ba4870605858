package cluster_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

func TestAPrefixOfEtcdIsAJournal(t *testing.T) {
	e := sharedEtcd(t)
	statestoretest.RunJournal(t, func(t *testing.T) func() statestore.Journal {
		options := e.candidateOptions(t, "active")
		return func() statestore.Journal { return campaign(t, open(t, options)) }
	})
}

func TestAStandbyTakesOverWithWhatWasCommitted(t *testing.T) {
	e := sharedEtcd(t)
	first, second := open(t, e.candidateOptions(t, "first")), open(t, e.candidateOptions(t, "second"))
	journal := campaign(t, first)
	if records := load(t, journal); len(records) != 0 {
		t.Errorf("a new prefix has the records %q", records)
	}
	commit(t, journal, group("a", "1", "b", "2"), group("a", "3"), group("c", "4", "", "empty id"))
	commit(t, journal, group("b", gone, "d", ""))

	won := make(chan *cluster.Journal, 1)
	go func() {
		journal, err := second.Campaign(t.Context())
		if err != nil {
			t.Error(err)
		}
		won <- journal
	}()
	for {
		active, changed := second.Active()
		if active == (cluster.Active{Name: "first", Address: "first:8883"}) {
			break
		}
		await.Receive(changed)
	}
	if err := journal.Standing(); err != nil {
		t.Error(err)
	}
	if err := journal.Close(); err != nil {
		t.Error(err)
	}
	if err := journal.Standing(); err == nil {
		t.Error("a closed journal has standing")
	}
	await.Receive(journal.Done())
	if !errors.Is(journal.Err(), cluster.ErrClosed) {
		t.Errorf("the journal ended with %v", journal.Err())
	}
	want := map[string]string{"a": "3", "c": "4", "d": "", "": "empty id"}
	if records := load(t, await.Receive(won)); !maps.Equal(records, want) {
		t.Errorf("the standby loaded %q, want %q", records, want)
	}
}
