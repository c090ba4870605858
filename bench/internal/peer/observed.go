package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tenurelock/tenure/bench/internal/pauses"
	"github.com/tenurelock/tenure/cmd/tenure/command"
)

// Observed starts `tenure serve --memory` in a process that records its own pauses. pauses is the URL for
// pauses.Fetch. It needs no Build.
func (h *Host) Observed(ctx context.Context) (s *Server, pauses string, err error) {
	return h.observed(ctx, "tenure")
}

// Idle starts a process that only records by how much its thread wakes late. pauses is the URL for
// pauses.Fetch. It needs no Build.
func (h *Host) Idle(ctx context.Context) (s *Server, pauses string, err error) {
	return h.observed(ctx, "idle")
}

func (h *Host) observed(ctx context.Context, name string) (*Server, string, error) {
	s, err := h.child(ctx, name)
	if err != nil {
		return nil, "", err
	}
	address, url, ok := strings.Cut(s.Address, ",")
	if !ok {
		return nil, "", fmt.Errorf("the process %s says %q in place of two addresses", name, s.Address)
	}
	s.Address = address
	return s, url, nil
}

// serveObserved runs `tenure serve --memory`, all that the command does beside the store included, and a
// recorder in the same process.
func serveObserved(ctx context.Context, _ string, said func(address string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serve := command.Program{Name: "tenure"}.Command()
	serve.SetArgs([]string{"serve", "--memory", "--addr", loopback})
	first := &output{ready: listening, found: make(chan string, 1)}
	serve.SetOut(first)
	served := make(chan error, 1)
	go func() { // ends with ctx; its result is received below
		err := serve.ExecuteContext(ctx)
		cancel()
		served <- err
	}()
	var err error
	select {
	case broker := <-first.found:
		err = serveRecorder(ctx, false, func(url string) { said(broker + "," + url) })
	case <-ctx.Done():
	}
	cancel()
	return errors.Join(err, <-served)
}

func serveIdle(ctx context.Context, _ string, said func(address string)) error {
	return serveRecorder(ctx, true, func(url string) { said("none," + url) })
}

// serveRecorder answers requests for the pauses of this process until ctx ends.
func serveRecorder(ctx context.Context, stalls bool, said func(url string)) error {
	recorder := pauses.Start(stalls)
	defer recorder.Stop()
	socket, err := net.Listen("tcp", loopback)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: recorder, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	said("http://" + socket.Addr().String())
	if err := web.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
