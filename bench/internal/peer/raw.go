package peer

import (
	"context"
	"io"
	"net"
)

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
	c := &rawClient{address: server.Address, idle: make(chan net.Conn, 1000)}
	return echoLocker{c.exchange, c.close}, nil
}

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

func (c *rawClient) close() {
	for {
		select {
		case conn := <-c.idle:
			_ = conn.Close()
		default:
			return
		}
	}
}
