package testsupport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
)

// MustReturn waits until Serve has returned want.
func MustReturn(t testing.TB, served <-chan error, want error) {
	t.Helper()
	if err := await.Receive(served); !errors.Is(err, want) {
		t.Errorf("Serve: %v, want %v", err, want)
	}
}

// StartStoppable is StartServer. stop shuts the server down and waits for the end of Serve; it may be
// called repeatedly, and is called when the test ends.
func StartStoppable(t testing.TB, options server.Options,
	before ...func(*server.Server)) (address string, s *server.Server, stop func()) {
	t.Helper()
	if options.Addr == "" {
		options.Addr = "127.0.0.1:0"
	}
	s, err := server.New(options)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range before {
		change(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		MustReturn(t, served, nil)
	})
	t.Cleanup(stop)
	return s.Addr().String(), s, stop
}

// Start runs a server on a free port until the test ends. Serve must return no error.
func Start(t testing.TB, options server.Options) (address string) {
	t.Helper()
	address, _ = StartServer(t, options)
	return address
}

// StartServer is Start. It also returns the server, and calls before with it ahead of Serve.
func StartServer(t testing.TB, options server.Options,
	before ...func(*server.Server)) (address string, s *server.Server) {
	t.Helper()
	address, s, _ = StartStoppable(t, options, before...)
	return address, s
}

// MustHaveClients waits until so many clients are connected.
func MustHaveClients(t testing.TB, s *server.Server, clients int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d clients are connected", clients), func() bool { return s.Stats().Connected == clients })
}
