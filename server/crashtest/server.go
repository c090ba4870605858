package crashtest

import (
	"context"
	"net"
	"sync"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// A Server is a server in a child, which tells its parent when it serves.
type Server struct {
	*server.Server
	task Task
}

// Open opens a server on a journal, in a child. It listens on socket, or on a port of loopback if
// that is nil. The caller calls Serve.
func Open(ctx context.Context, task Task, journal statestore.Journal, socket net.Listener) (*Server, error) {
	s, err := server.Open(ctx, server.Options{
		Addr:          "127.0.0.1:0",
		Listener:      socket,
		AllowInsecure: true,
		Store:         statestore.Options{Strict: task.Strict},
		Journal:       journal,
	})
	return &Server{s, task}, err
}

// Serve serves until ctx ends. It tells the parent the address once the server has answered a
// client: the lifetimes have begun then, so the checker can count them from the moment at which
// it learns the address. At the end it tells an empty address.
func (s *Server) Serve(ctx context.Context) error {
	defer s.task.Announce("")
	var first sync.WaitGroup
	defer first.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	first.Go(func() {
		client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{ClientID: "first"})
		if err != nil {
			return // ctx has ended, or Serve returns why there is no answer
		}
		s.task.Announce(s.Addr().String())
		_ = client.Close()
	})
	return s.Server.Serve(ctx)
}
