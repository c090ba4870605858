package main

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// usageInterval is how often the log says what the server holds, with --verbose.
	usageInterval = time.Minute
	// dropInterval is how often the log says which limit messages were dropped for: no
	// line comes for each message, and so few of them need no limiter.
	dropInterval = 10 * time.Second
	// goroutineMemory is about what one goroutine of a connection stands for.
	goroutineMemory = 16 << 10
)

// flagOfDrop says which flag lets fewer messages be dropped, by the reason.
var flagOfDrop = map[string]string{
	"connection full": "--max-outgoing-bytes, --max-all-outgoing-bytes",
	"session full":    "--max-session-bytes, --max-session-messages",
	"sessions full":   "--max-all-session-bytes",
	"not retained":    "--max-retained, --max-retained-bytes",
}

// reportUsage logs what a server holds, and what it had to drop for want of room, until ctx
// ends.
func reportUsage(ctx context.Context, logger *slog.Logger, usage func() server.Usage) {
	holds, drops := time.NewTicker(usageInterval), time.NewTicker(dropInterval)
	defer holds.Stop()
	defer drops.Stop()
	said := make(map[string]uint64)
	for {
		select {
		case <-ctx.Done():
			reportDrops(logger, usage(), said)
			return
		case <-drops.C:
			reportDrops(logger, usage(), said)
		case <-holds.C:
			if logger.Enabled(ctx, slog.LevelInfo) {
				reportHeld(logger, usage())
			}
		}
	}
}

// reportDrops logs what was dropped beyond what said knows, and notes it there.
func reportDrops(logger *slog.Logger, u server.Usage, said map[string]uint64) {
	for reason, flag := range flagOfDrop {
		if dropped := u.DroppedMessages[reason]; dropped > said[reason] {
			logger.Warn("messages were dropped: "+reason, "messages", dropped-said[reason], "flag", flag)
			said[reason] = dropped
		}
	}
}

func reportHeld(logger *slog.Logger, u server.Usage) {
	logger.Info("usage",
		"keys", u.Store.Keys, "key-bytes", u.Store.Bytes,
		"watches", u.Store.Watches, "watch-bytes", u.Store.WatchBytes,
		"remembered", u.Store.DedupEntries,
		"sessions", u.Sessions, "subscriptions", u.Subscriptions, "subscription-bytes", u.SubscriptionBytes,
		"session-messages", u.WaitingMessages, "session-bytes", u.WaitingBytes,
		"outgoing-bytes", u.OutgoingBytes, "arriving-bytes", u.ArrivingBytes,
		"retained", u.RetainedMessages, "retained-bytes", u.RetainedBytes)
}

// heldBy returns about how many bytes a server holds for its clients.
func heldBy(u server.Usage) int64 {
	return heldByStore(u.Store) + u.SubscriptionBytes + u.WaitingBytes + u.OutgoingBytes + u.ArrivingBytes + u.RetainedBytes
}

// heldByStore is heldBy for a store alone, with what connections cost.
func heldByStore(u statestore.Usage) int64 {
	return u.Bytes + u.WatchBytes + u.DedupBytes + int64(runtime.NumGoroutine())*goroutineMemory
}
