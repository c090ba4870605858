package logs

import (
	"context"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// loadingInterval is how often a line says how far a journal is loaded.
const loadingInterval = 2 * time.Second

// Loading returns a journal that logs how far it is loaded, every two seconds, and at the end how long
// that took. It returns nil for nil.
func Loading(journal statestore.Journal, logger *slog.Logger) statestore.Journal {
	if journal == nil {
		return nil
	}
	return &loading{Journal: journal, logger: logger}
}

type loading struct {
	statestore.Journal
	logger *slog.Logger
}

// countedAtOnce is how many records are loaded between two looks at the clock.
const countedAtOnce = 256

// Load implements statestore.Journal.
func (l *loading) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	began := time.Now()
	latest := began
	var records, bytes int64
	former, err = l.Journal.Load(ctx, func(record statestore.Record) error {
		records++
		bytes += int64(len(record.ID) + len(record.Value))
		if records%countedAtOnce == 0 {
			if now := time.Now(); now.Sub(latest) >= loadingInterval {
				latest = now
				l.logger.Info("loading the journal", "records", records, "bytes", bytes)
			}
		}
		return each(record)
	})
	if err == nil {
		l.logger.Info("loaded the journal", "records", records, "bytes", bytes, "took", time.Since(began))
	}
	return former, err
}

// Full implements statestore.Bounded.
func (l *loading) Full() bool { return statestore.IsFull(l.Journal) }
