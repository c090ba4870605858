package peer

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Child is what runs in a process of its own: it returns when ctx ends, and calls said with its
// address, which has no space, when clients can connect. argument is what it was started with.
type Child func(ctx context.Context, argument string, said func(address string)) error

// childVariable names the Child that the executable runs in place of its own work.
const childVariable = "TENURE_PEER"

// children are the servers that run in this executable. Their argument is a directory of their own.
var children = map[string]Child{"etcd": serveEtcd, "nats": serveNATS}

// ServeChild returns at once, unless a Host has started this process to run a server, or one of more:
// then it does, until the process that started it ends, and exits: with 1 and a line for the error, if
// there is one.
func ServeChild(more map[string]Child) {
	name := os.Getenv(childVariable)
	serve, ok := children[name]
	if !ok {
		serve, ok = more[name]
	}
	if !ok {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	said := func(address string) { fmt.Printf("listening on %s\n", address) }
	if err := serve(ctx, os.Getenv(childVariable+"_ARGUMENT"), said); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Child starts a child that ServeChild knows, and returns when it has said its address.
func (h *Host) Child(ctx context.Context, name, argument string) (*Server, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	task := []string{childVariable + "=" + name, childVariable + "_ARGUMENT=" + argument}
	return h.start(ctx, listening, task, executable)
}

// child starts one of children.
func (h *Host) child(ctx context.Context, name string) (*Server, error) {
	dir, err := h.folder(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return h.Child(ctx, name, dir)
}
