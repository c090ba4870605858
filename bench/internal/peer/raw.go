package peer

import (
	"context"
	"io"
	"net"
	"sync"
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

	mu   sync.Mutex // guards what follows
	idle []net.Conn
	all  []net.Conn
}

func dialRaw(_ context.Context, server *Server, _ string) (Locker, error) {
	c := &rawClient{address: server.Address}
	return echoLocker{c.exchange, c.close}, nil
}

func (c *rawClient) exchange(ctx context.Context) error {
	conn, err := c.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	piece := make([]byte, rawSize)
	if _, err := conn.Write(piece); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, piece); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, conn)
	return nil
}

func (c *rawClient) take(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		conn := c.idle[last]
		c.idle = c.idle[:last]
		return conn, nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err == nil {
		c.all = append(c.all, conn)
	}
	return conn, err
}

func (c *rawClient) close() {
	for _, conn := range c.all {
		_ = conn.Close()
	}
}
