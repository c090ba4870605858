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
	"github.com/tenurelock/tenure/server"
)

// Observed starts a store of ours in memory, with default options, in a process that records its
// own pauses. pauses is the URL for pauses.Fetch. It needs no Build.
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

func serveObserved(ctx context.Context, _ string, said func(address string)) error {
	s, err := server.New(server.Options{Addr: loopback})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { // ends with ctx; its result is received below
		err := s.Serve(ctx)
		cancel()
		served <- err
	}()
	err = serveRecorder(ctx, false, func(url string) { said("mqtt://" + s.Addr().String() + "," + url) })
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
