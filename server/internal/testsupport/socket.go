package testsupport

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// Listen returns a TCP listener on a free port of this machine. It is closed when the test ends.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// DialTCP returns a connection that Patience bounds and the end of the test closes.
func DialTCP(t testing.TB, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(Patience))
	return conn
}

// Send writes data to a connection.
func Send(t testing.TB, conn net.Conn, data string) {
	t.Helper()
	if _, err := io.WriteString(conn, data); err != nil {
		t.Fatal(err)
	}
}

// MustBeClosed fails unless the server closes the connection and sends nothing before.
func MustBeClosed(t testing.TB, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still open: %d bytes, %v", n, err)
	}
}
