//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/pair"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/standby"
)

// What a store writes to standard output.
const (
	saysStandby = "standby"
	saysActive  = "active"
)

// logger returns a logger of a store or a node.
func (s settings) logger() *slog.Logger {
	if !s.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With(s.role, s.name)
}

// runStore stands by and serves until ctx ends.
func runStore(ctx context.Context, s settings, input io.Reader, output io.Writer) error {
	ctx, stop := pair.UntilClosed(ctx, input, func(string) {})
	defer stop()
	logger := s.logger()
	socket, err := standby.Listen(s.address)
	if err != nil {
		return err
	}
	defer socket.Close()
	candidate, err := cluster.Open(ctx, cluster.Options{
		Endpoints: strings.Split(s.etcd, ","), Name: s.name, Address: s.address, TTL: s.etcdTTL, Logger: logger,
	})
	if err != nil {
		return err
	}
	replica := &standby.Replica{
		Listener: socket,
		Options: standby.Options{Logger: logger, Active: func() string {
			active, _ := candidate.Active()
			return active.Address
		}},
		Campaign: func(ctx context.Context) (standby.Journal, error) {
			fmt.Fprintln(output, saysStandby)
			journal, err := candidate.Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return journal, nil
		},
		Open: func(ctx context.Context, journal standby.Journal, socket net.Listener) (standby.Store, error) {
			active, err := server.Open(ctx, server.Options{Journal: journal, Listener: socket, Logger: logger})
			if err != nil {
				return nil, err
			}
			fmt.Fprintln(output, saysActive)
			return active, nil
		},
		StandByAfter: func(err error) bool {
			return errors.Is(err, cluster.ErrDeposed) || errors.Is(err, cluster.ErrDeadlinePassed)
		},
	}
	return errors.Join(replica.Run(ctx), candidate.Close())
}
