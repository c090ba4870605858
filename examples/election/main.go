// Command election runs one node of an active/standby pair.
//
//	tenure serve                                  # in one terminal
//	go run ./examples/election --name gateway-a   # in another
//	go run ./examples/election --name gateway-b   # in a third: it takes over when the first ends
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

func main() {
	broker := flag.String("broker", "mqtt://localhost:1883", "address of the broker")
	name := flag.String("name", "gateway-a", "name of this node, which no other node has")
	duration := flag.Duration("for", time.Hour, "how long to take part")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *duration)
	defer cancel()
	logger := slog.New(slog.NewTextHandler(os.Stdout, nil)).With("node", *name)
	if err := run(ctx, *broker, *name, logger); err != nil {
		logger.Error("the node failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, name string, logger *slog.Logger) error {
	client, err := transport.Dial(ctx, broker, transport.Options{
		ClientID:      name,
		ClientOptions: transport.ClientOptions{Logger: logger},
	})
	if err != nil {
		return err
	}
	defer client.Close()

	elector, err := election.New(client, "press-7/active", election.Options{
		TTL: 2 * time.Second,
		Observer: func(t election.Transition) {
			logger.Info("phase", "transition", t)
		},
	})
	if err != nil {
		return err
	}
	err = elector.Run(ctx, func(ctx context.Context, term *election.Term) error {
		// This node leads until ctx ends. The guard adds the term's token to each write: once
		// another node has claimed the key, the store refuses the write.
		if _, err := term.Guard().Set(ctx, "press-7/setpoint", []byte("42")); err != nil {
			return err
		}
		logger.Info("leading, and the setpoint is written")
		<-ctx.Done()
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil // the time is up, or a signal came
	}
	return err
}
