// Command guard shows that the store refuses a late write of a former holder.
//
//	tenure serve               # in one terminal
//	go run ./examples/guard    # in another
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	leaseName = "press-8/active"
	key       = "press-8/setpoint"
)

func main() {
	broker := flag.String("broker", "mqtt://localhost:1883", "address of the broker")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	logger := slog.New(slog.NewTextHandler(os.Stdout, nil))
	if err := run(ctx, *broker, logger); err != nil {
		logger.Error("failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker string, logger *slog.Logger) error {
	client, err := transport.Dial(ctx, broker, transport.Options{ClientOptions: transport.ClientOptions{Logger: logger}})
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := lease.New(client, leaseName, lease.Options{TTL: 2 * time.Second})
	if err != nil {
		return err
	}

	first, err := hold(ctx, client, l, "42", logger)
	if err != nil {
		return err
	}
	late, err := first.Token() // of a write that is still on its way when the tenure ends
	if err != nil {
		return err
	}
	if err := first.Release(ctx); err != nil {
		return err
	}
	second, err := hold(ctx, client, l, "43", logger)
	if err != nil {
		return err
	}
	defer second.Release(context.WithoutCancel(ctx))

	// The guard of the first tenure refuses the write itself.
	if _, err = fencing.NewGuard(client, first).Set(ctx, key, []byte("41")); !errors.Is(err, lease.ErrReleased) {
		return fmt.Errorf("the guard of the first tenure returned %v", err)
	}
	logger.Info("refused by the guard", "error", err)
	// A write that was already on its way bypasses the guard. The store refuses it.
	if _, err = client.Set(ctx, key, []byte("41"), transport.SetOptions{FencingToken: late}); !errors.Is(err, fencing.ErrStaleToken) {
		return fmt.Errorf("the store returned %v", err)
	}
	logger.Info("refused by the store", "error", err)
	return nil
}

// hold acquires the lease and writes the key under its token.
func hold(ctx context.Context, client *transport.Client, l *lease.Lease, value string, logger *slog.Logger) (*lease.Tenure, error) {
	tenure, err := l.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	guard := fencing.NewGuard(client, tenure)
	// Claim before reading: from here on no write of an earlier holder can change the key.
	if _, err := guard.Claim(ctx, key); err != nil {
		return nil, err
	}
	if _, err := guard.Set(ctx, key, []byte(value)); err != nil {
		return nil, err
	}
	token, err := tenure.Token()
	logger.Info("written", "value", value, "token", token)
	return tenure, err
}
