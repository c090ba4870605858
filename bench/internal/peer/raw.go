package peer

import (
	"context"
	"errors"
	"io"
	"net"
)

// rawPeer returns the peer without locks: what an exchange costs.
func rawPeer() *Peer {
	return &Peer{
		Name: "raw echo",
		About: "160 bytes and the same back, without MQTT, over a connection for each that is in flight. A pair is two " +
			"exchanges, a renewal and a guarded write are one. Nothing over TCP can be faster with one in flight.",
		Lacks: map[Operation]string{HandOver: "messages alone have no locks"},
		Serve: func(ctx context.Context, h *Host) (*Server, error) { return h.child(ctx, "raw") },
		Lock:  dialRaw,
	}
}

// rawSize is how many bytes a request and its answer have.
const rawSize = 160

// serveRaw sends back what comes.
func serveRaw(ctx context.Context, _ string, said func(address string)) error {
	listener, err := net.Listen("tcp", loopback)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	said(listener.Addr().String())
	for {
		conn, err := listener.Accept()
		if err != nil {
			return nil // closed: connections end with the process
		}
		go func() { // ends with its connection
			defer conn.Close()
			piece := make([]byte, rawSize)
			for {
				n, err := conn.Read(piece)
				if err == nil {
					_, err = conn.Write(piece[:n])
				}
				if err != nil {
					return
				}
			}
		}()
	}
}

// rawClient has a connection for each request in flight.
type rawClient struct {
	address string
	idle    chan net.Conn
}

func dialRaw(_ context.Context, server *Server, _ string) (Locker, error) {
	return &rawClient{address: server.Address, idle: make(chan net.Conn, 1000)}, nil
}

// exchange is each request.
func (c *rawClient) exchange(ctx context.Context) (err error) {
	var conn net.Conn
	select {
	case conn = <-c.idle:
	default:
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", c.address); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	piece := make([]byte, rawSize)
	if _, err = conn.Write(piece); err == nil {
		_, err = io.ReadFull(conn, piece)
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	c.idle <- conn
	return nil
}

func (c *rawClient) TryObtain(ctx context.Context, _ string) (Held, error) {
	return nil, c.exchange(ctx)
}
func (c *rawClient) Obtain(context.Context, string) (Held, error) { return nil, errors.ErrUnsupported }
func (c *rawClient) Release(ctx context.Context, _ Held) error    { return c.exchange(ctx) }

func (c *rawClient) Renewal(context.Context, Held) (func(context.Context) error, error) {
	return c.exchange, nil
}

func (c *rawClient) Writer(context.Context, Held, string) (func(context.Context, []byte) error, error) {
	return func(ctx context.Context, _ []byte) error { return c.exchange(ctx) }, nil
}

func (c *rawClient) Close() {
	for {
		select {
		case conn := <-c.idle:
			_ = conn.Close()
		default:
			return
		}
	}
}
