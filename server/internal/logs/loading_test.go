package logs_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

const slowIdle = time.Minute

// slowJournal is a journal that takes a time for each of its records.
type slowJournal struct {
	statestore.Journal
	records int
	each    time.Duration
	err     error
}

func (j *slowJournal) Load(_ context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	for range j.records {
		time.Sleep(j.each)
		if err := each(statestore.Record{ID: []byte("id"), Value: []byte("value")}); err != nil {
			return former, err
		}
	}
	return statestore.Former{Idle: slowIdle}, j.err
}

func TestALongLoadSaysHowFarItIs(t *testing.T) {
	for _, test := range []struct {
		name          string
		journal       *slowJournal
		loading, done int
	}{
		{"without data", &slowJournal{}, 0, 1},
		{"short", &slowJournal{records: 10_000, each: 100 * time.Microsecond}, 0, 1},
		{"eleven seconds", &slowJournal{records: 11_000, each: time.Millisecond}, 5, 1}, // the clock is read every 256 ms
		{"failed", &slowJournal{records: 3, err: errors.New("broken")}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				journal := logs.Loading(test.journal, slog.New(slog.NewTextHandler(&log, nil)))
				got := 0
				former, err := journal.Load(t.Context(), func(statestore.Record) error { got++; return nil })
				if !errors.Is(err, test.journal.err) || got != test.journal.records || former.Idle != slowIdle {
					t.Errorf("%d records, error %v, idle for %v; want %d, %v, %v", got, err, former.Idle, test.journal.records, test.journal.err, slowIdle)
				}
				if n := strings.Count(log.String(), "loading the journal"); n != test.loading {
					t.Errorf("%d lines say how far it is; want %d:\n%s", n, test.loading, &log)
				}
				if n := strings.Count(log.String(), "loaded the journal"); n != test.done {
					t.Errorf("%d lines say that it is loaded; want %d:\n%s", n, test.done, &log)
				}
			})
		})
	}
}

func TestNoJournalStaysNone(t *testing.T) {
	if journal := logs.Loading(nil, slog.New(slog.DiscardHandler)); journal != nil {
		t.Errorf("a journal of type %T; want none", journal)
	}
}
