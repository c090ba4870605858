package command

import (
	"context"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/server"
)

const (
	// usageInterval is how often the log reports what the server holds, at level info.
	usageInterval = time.Minute
	// dropInterval is how often the log reports dropped messages. One line for many
	// messages needs no rate limit.
	dropInterval = 10 * time.Second
)

// dropFlags gives the flags that raise the limit behind a reason to drop messages.
var dropFlags = map[server.MessageDropReason]string{
	server.MessageConnectionFull: "--max-outgoing-bytes, --max-all-outgoing-bytes",
	server.MessageSessionFull:    "--max-session-bytes, --max-session-messages",
	server.MessageSessionsFull:   "--max-all-session-bytes",
	server.MessageNotRetained:    "--max-retained, --max-retained-bytes",
}

// reportUsage logs what a server holds and which messages it dropped because of a limit,
// until ctx ends.
func reportUsage(ctx context.Context, logger *slog.Logger, usage func() server.Usage, stats func() server.Stats) {
	holds, drops := time.NewTicker(usageInterval), time.NewTicker(dropInterval)
	defer holds.Stop()
	defer drops.Stop()
	reported := make(map[server.MessageDropReason]uint64)
	for {
		select {
		case <-ctx.Done():
			reportDrops(logger, stats(), reported)
			return
		case <-drops.C:
			reportDrops(logger, stats(), reported)
		case <-holds.C:
			if logger.Enabled(ctx, slog.LevelInfo) {
				reportHeld(logger, usage())
			}
		}
	}
}

// reportDrops logs the drops that are not in reported yet, and adds them.
func reportDrops(logger *slog.Logger, s server.Stats, reported map[server.MessageDropReason]uint64) {
	for reason, flags := range dropFlags {
		if dropped := s.DroppedMessages[reason]; dropped > reported[reason] {
			logger.Warn("messages were dropped: "+string(reason), "messages", dropped-reported[reason], "flag", flags)
			reported[reason] = dropped
		}
	}
}

func reportHeld(logger *slog.Logger, u server.Usage) {
	logger.Info("usage",
		"keys", u.Store.Keys, "key-bytes", u.Store.Bytes,
		"watches", u.Store.Watches, "watch-bytes", u.Store.WatchBytes,
		"dedup-entries", u.Store.DedupEntries,
		"sessions", u.Sessions, "subscriptions", u.Subscriptions, "subscription-bytes", u.SubscriptionBytes,
		"session-messages", u.WaitingMessages, "session-bytes", u.WaitingBytes,
		"outgoing-bytes", u.OutgoingBytes, "arriving-bytes", u.ArrivingBytes,
		"retained", u.RetainedMessages, "retained-bytes", u.RetainedBytes)
}
