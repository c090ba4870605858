package mqtt

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// piped returns a connection, and its far end.
func piped() (conn *Conn, far net.Conn) {
	near, far := net.Pipe()
	return newConn(near, near, 0, time.Minute), far
}

func TestAWriteThatMakesNoProgressEndsTheConnection(t *testing.T) {
	for name, send := range map[string]func(*Conn){
		"a packet":      func(conn *Conn) { conn.Send([]byte("ab")) },
		"a large batch": func(conn *Conn) { conn.Send(make([]byte, 32<<10)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, far := piped()
				began := time.Now()
				send(conn) // and the other end does not read
				if took := time.Since(began); took != time.Minute {
					t.Errorf("it took %v", took)
				}
				if n, err := far.Write([]byte("x")); err == nil {
					t.Errorf("the connection goes on: %d bytes written", n)
				}
			})
		})
	}
}
