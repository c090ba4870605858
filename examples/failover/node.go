//go:build unix || windows

package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/pair"
)

// runNode campaigns until ctx or standard input ends, and writes events to standard output.
func runNode(ctx context.Context, s settings) error {
	logger := slog.New(slog.DiscardHandler)
	if s.verbose {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", s.node)
	}
	return pair.RunNode(ctx, pair.Options{
		Node:            s.node,
		Run:             s.run,
		Stores:          s.broker,
		WebSocket:       tenurews.Upgrade,
		TTL:             s.ttl,
		InstantFailover: s.instant,
		Control:         true,
		Logger:          logger,
	}, os.Stdin, os.Stdout)
}
