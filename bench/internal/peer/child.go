package peer

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// childVariable names the server that the executable runs in place of its own work.
const childVariable = "TENURE_PEER"

// children are the servers that run in this executable. Each returns when ctx ends, and calls said
// with its address when clients can connect. dir is a directory of its own.
var children = map[string]func(ctx context.Context, dir string, said func(address string)) error{
	"etcd":   serveEtcd,
	"nats":   serveNATS,
	"stock":  serveStock,
	"raw":    serveRaw,
	"tenure": serveObserved,
	"idle":   serveIdle,
}

// ServeChild returns at once, unless Host has started this process to run a server: then it runs the
// server, until the process that started it ends, and exits.
func ServeChild() {
	serve, ok := children[os.Getenv(childVariable)]
	if !ok {
		return
	}
	RunChild(func(ctx context.Context) error {
		said := func(address string) { fmt.Printf("listening on %s\n", address) }
		return serve(ctx, os.Getenv(childVariable+"_DIR"), said)
	})
}

// RunChild runs what this process was started for, and exits: with 1 and a line for the error, if there
// is one. The context ends with SIGTERM and with the standard input, so at the latest when the process
// that started this one ends.
func RunChild(run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child starts one of children.
func (h *Host) child(ctx context.Context, name string) (*Server, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := h.folder(name)
	if err != nil {
		return nil, err
	}
	return h.start(ctx, listening, []string{childVariable + "=" + name, childVariable + "_DIR=" + dir}, executable)
}
