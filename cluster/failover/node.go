//go:build unix

package main

import (
	"context"
	"os"
	"time"

	"github.com/tenurelock/tenure/internal/pair"
)

const (
	// pairRun names the keys of the pair. The store is the program's own, so one name serves.
	pairRun = "replicated"
	// reconnectMax is how long a client pauses at most while each store stands by.
	reconnectMax = 500 * time.Millisecond
)

// runNode campaigns until ctx or standard input ends, and writes events to standard output.
func runNode(ctx context.Context, s settings) error {
	return pair.RunNode(ctx, pair.Options{
		Node:         s.name,
		Run:          pairRun,
		Stores:       s.stores,
		TTL:          s.ttl,
		ReconnectMax: reconnectMax,
		Logger:       s.logger(),
	}, os.Stdin, os.Stdout)
}
