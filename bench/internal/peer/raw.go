package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	rawSize   = 160
	rawBuffer = 64 << 10
)

// serveRaw sends back what comes, in pieces of rawSize bytes.
func serveRaw(ctx context.Context, _ string, said func(address string)) error {
	listener, err := net.Listen("tcp", loopback)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	said(listener.Addr().String())
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		serving.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			defer conn.Close()
			answerRaw(conn)
		})
	}
}

// answerRaw holds answers back as long as there is a request to read.
func answerRaw(conn net.Conn) {
	in, out := bufio.NewReaderSize(conn, rawBuffer), bufio.NewWriterSize(conn, rawBuffer)
	piece := make([]byte, rawSize)
	for {
		if _, err := io.ReadFull(in, piece); err != nil {
			return
		}
		_, _ = out.Write(piece) // what fails shows in the next flush
		if in.Buffered() < rawSize && out.Flush() != nil {
			return
		}
	}
}

// rawClient has one connection.
type rawClient struct {
	conn  net.Conn
	in    *bufio.Reader
	out   *bufio.Writer
	piece []byte
}

func dialRaw(ctx context.Context, server *Server) (Echo, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server.Address)
	if err != nil {
		return nil, err
	}
	return &rawClient{
		conn: conn, in: bufio.NewReaderSize(conn, rawBuffer), out: bufio.NewWriterSize(conn, rawBuffer), piece: make([]byte, rawSize),
	}, nil
}

// rawOperation is an operation that is under way.
type rawOperation struct {
	number int // from 0
	left   int // exchanges
	began  time.Time
}

// Lap keeps so many operations in flight from one goroutine, and writes only when there is nothing
// to read. Answers come in the order of the requests, so the operations form a ring.
func (c *rawClient) Lap(ctx context.Context, exchanges, inFlight int, times []time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	ring := make([]rawOperation, min(inFlight, len(times)))
	for i := range ring {
		ring[i] = rawOperation{number: i, left: exchanges, began: time.Now()}
		c.send(i)
	}
	begun := len(ring)
	for done, at := 0, 0; done < len(times); at = (at + 1) % len(ring) {
		operation := &ring[at]
		if operation.left == 0 {
			continue // no more operations to begin
		}
		if c.in.Buffered() < rawSize {
			if err := c.out.Flush(); err != nil {
				return errors.Join(context.Cause(ctx), err)
			}
		}
		if _, err := io.ReadFull(c.in, c.piece); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if c.piece[0] != byte(at) {
			return fmt.Errorf("the echo of request %d came back as %d", byte(at), c.piece[0])
		}
		if operation.left--; operation.left == 0 {
			times[operation.number] = time.Since(operation.began)
			done++
			if begun == len(times) {
				continue
			}
			*operation = rawOperation{number: begun, left: exchanges, began: time.Now()}
			begun++
		}
		c.send(at)
	}
	return nil
}

// send writes a request of an operation.
func (c *rawClient) send(at int) {
	c.piece[0] = byte(at)
	_, _ = c.out.Write(c.piece) // what fails shows in the next flush
}

func (c *rawClient) Close() { _ = c.conn.Close() }
