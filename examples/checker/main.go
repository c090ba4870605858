// Command checker protects a file with fencing tokens. The store knows nothing of the file:
// the one process that writes it checks the tokens.
//
//	tenure serve                 # in one terminal
//	go run ./examples/checker    # in another
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
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
	dir, err := os.MkdirTemp("", "tenure-checker")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	recipe, err := openRecipe(dir)
	if err != nil {
		return err
	}
	defer func() { _ = recipe.close() }()

	client, err := transport.Dial(ctx, broker, transport.Options{ClientOptions: transport.ClientOptions{Logger: logger}})
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := lease.New(client, "press-9/active", lease.Options{TTL: 2 * time.Second})
	if err != nil {
		return err
	}

	var former hlc.Token
	for _, text := range []string{"press softly", "press harder"} {
		tenure, err := l.Acquire(ctx)
		if err != nil {
			return err
		}
		token, err := tenure.Token()
		if err != nil {
			return err
		}
		if err := recipe.write(ctx, token, text); err != nil {
			return err
		}
		logger.Info("written", "text", text, "token", token)
		if err := tenure.Release(ctx); err != nil {
			return err
		}
		if former.IsZero() {
			former = token
		}
	}

	// The checker is opened again, as after a restart. It still knows the highest token.
	if err := recipe.close(); err != nil {
		return err
	}
	reopened, err := openRecipe(dir)
	if err != nil {
		return err
	}
	defer func() { _ = reopened.close() }()
	if err = reopened.write(ctx, former, "press softly"); !errors.Is(err, fencing.ErrStaleToken) {
		return fmt.Errorf("the checker returned %v", err)
	}
	logger.Info("refused by the checker", "error", err)
	return nil
}

// A recipe is a file. The highest token with which it was written is in a file beside it.
type recipe struct {
	checker *fencing.Checker
	fence   *fencing.FileStore
	path    string
}

func openRecipe(dir string) (*recipe, error) {
	path := filepath.Join(dir, "recipe")
	fence, err := fencing.OpenFileStore(path + ".fence")
	if err != nil {
		return nil, err
	}
	checker, err := fencing.NewChecker("recipe", fence.Highest(), fence.Persist)
	if err != nil {
		return nil, errors.Join(err, fence.Close())
	}
	return &recipe{checker, fence, path}, nil
}

func (r *recipe) write(ctx context.Context, token hlc.Token, text string) error {
	return r.checker.Do(ctx, token, func() error { return os.WriteFile(r.path, []byte(text), 0o600) })
}

func (r *recipe) close() error { return r.fence.Close() }
