// Command lease does a job on one machine at a time.
//
//	tenure serve                               # in one terminal
//	go run ./examples/lease --name gateway-a   # in another
//	go run ./examples/lease --name gateway-b   # in a third: it waits until the first is done
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

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

func main() {
	broker := flag.String("broker", "mqtt://localhost:1883", "address of the broker")
	name := flag.String("name", "gateway-a", "name of this process, which no other process has")
	wait := flag.Duration("wait", time.Minute, "how long to wait for the broker and the lease")
	work := flag.Duration("work", 10*time.Second, "how long the job takes")
	ttl := flag.Duration("ttl", 2*time.Second,
		"how long the lease outlives its holder; with a store that is taken over, 15s")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stdout, nil)).With("process", *name)
	if err := run(ctx, *broker, *name, *wait, *work, *ttl, logger); err != nil {
		logger.Error("the job was not done", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, name string, wait, work, ttl time.Duration, logger *slog.Logger) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	client, err := transport.Dial(waiting, broker, transport.Options{
		ClientID:      name,
		ClientOptions: transport.ClientOptions{Logger: logger},
	})
	if err != nil {
		return err
	}
	defer client.Close()

	l, err := lease.New(client, "press-7/calibration", lease.Options{TTL: ttl})
	if err != nil {
		return err
	}
	tenure, err := l.TryAcquire(waiting)
	if held := (*lease.HeldError)(nil); errors.As(err, &held) {
		logger.Info("waiting", "holder", held.Holder.Name)
		tenure, err = l.Acquire(waiting)
	}
	if err != nil {
		return err
	}
	// Release even if ctx has ended: then the next process need not wait for the TTL.
	defer func() {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := tenure.Release(releasing); err != nil {
			logger.Warn("the lease is free after its TTL", "error", err)
		}
	}()

	// The tenure's context does not end with ctx: a signal has to stop the job too.
	working, cancel := context.WithCancel(tenure.Context())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	logger.Info("working")
	if err := job(working, work); err != nil {
		return err
	}
	logger.Info("done")
	return nil
}

// job stands for the work. It must stop when ctx ends, because then another process may have
// the lease.
func job(ctx context.Context, work time.Duration) error {
	select {
	case <-time.After(work):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
