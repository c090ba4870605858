package transport

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// piped returns a connection whose first packet goes through complete, and its far end.
func piped(complete func([]byte) ([]byte, error)) (conn *netConn, far net.Conn) {
	near, far := net.Pipe()
	conn = newNetConn(near, near, 0, time.Minute)
	conn.complete = complete
	return conn, far
}

// write writes one packet, as paho does.
func write(t *testing.T, conn *netConn, pieces ...string) {
	t.Helper()
	conn.Lock()
	defer conn.Unlock()
	for _, piece := range pieces {
		if _, err := conn.Write([]byte(piece)); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyTheFirstPacketIsCompletedAndAsAWhole(t *testing.T) {
	conn, far := piped(func(packet []byte) ([]byte, error) { return append(packet, '!'), nil })
	go func() {
		write(t, conn, "a", "b")
		write(t, conn, "c", "d")
		_ = conn.Close()
	}()
	arrived, err := io.ReadAll(far)
	if string(arrived) != "ab!cd" || err != nil || conn.incomplete() != nil {
		t.Errorf("%q arrived (%v, %v)", arrived, err, conn.incomplete())
	}
}

func TestAPacketThatCannotBeCompletedEndsTheConnectionAndSaysWhy(t *testing.T) {
	why := errors.New("why")
	conn, far := piped(func([]byte) ([]byte, error) { return nil, why })
	write(t, conn, "a", "b")
	if arrived, err := io.ReadAll(far); err != nil || len(arrived) > 0 {
		t.Errorf("%q arrived (%v)", arrived, err)
	}
	if got := conn.incomplete(); got != why {
		t.Errorf("incomplete: %v, want %v", got, why)
	}
}

func TestAWriteThatMakesNoProgressEndsTheConnection(t *testing.T) {
	for name, send := range map[string]func(*netConn){
		"of paho":       func(conn *netConn) { write(t, conn, "a", "b") },
		"past paho":     func(conn *netConn) { conn.send([]byte("ab")) },
		"a large batch": func(conn *netConn) { conn.send(make([]byte, maxBatch)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, far := piped(nil)
				began := time.Now()
				send(conn) // and nobody reads
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
