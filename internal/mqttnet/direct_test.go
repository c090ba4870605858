package mqttnet

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// connected returns a connection over TCP, and its far end. It skips the test on Windows, which
// has no write without a wait.
func connected(t *testing.T, writeTimeout time.Duration) (conn *Conn, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	conn = newConn(near, near, 0, writeTimeout)
	if runtime.GOOS == "windows" {
		t.Skip("this system has no write without a wait")
	}
	if !conn.CanTrySend() {
		t.Fatal("a connection over TCP has no write without a wait")
	}
	return conn, far
}

// fill calls TrySend until the socket takes no more, and returns all that it took.
func fill(t *testing.T, conn *Conn) (sent []byte) {
	t.Helper()
	for i := range byte(100) {
		packet := bytes.Repeat([]byte{i}, 1<<20)
		taken, left := conn.TrySend(packet)
		if !taken {
			t.Fatal("nothing else is being written, and it takes nothing")
		}
		sent = append(sent, packet...)
		if left {
			return sent
		}
	}
	t.Fatal("a socket that is not read takes all bytes")
	return nil
}

func TestWhatTheSocketDoesNotTakeAtOnceLeavesBeforeAllElse(t *testing.T) {
	for name, test := range map[string]struct {
		next func(*Conn)
		want string
	}{
		"before packets":   {func(conn *Conn) { conn.Send([]byte("next")) }, "next"},
		"before paho's":    {func(conn *Conn) { conn.Lock(); _, _ = conn.Write([]byte("next")); conn.Unlock() }, "next"},
		"before a PINGREQ": {func(conn *Conn) { conn.lock <- struct{}{}; conn.ping(time.Minute) }, "\xc0\x00"},
		"before nothing":   {func(conn *Conn) { conn.Send(nil) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, far := connected(t, time.Minute)
			want := fill(t, conn)
			if taken, _ := conn.TrySend([]byte("later")); taken {
				t.Error("packets overtake what is left")
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				test.next(conn)
				_ = conn.Close()
			}()
			got := await.Result(func() []byte { all, _ := io.ReadAll(far); return all })
			await.Receive(done)
			if !bytes.HasPrefix(got, want) {
				t.Fatalf("%d bytes arrive, and not first the %d that were sent first", len(got), len(want))
			}
			if after := string(got[len(want):]); after != test.want {
				t.Errorf("%q arrives after them, want %q", after, test.want)
			}
		})
	}
}

func TestNothingIsSentInTheMiddleOfAPacket(t *testing.T) {
	conn, far := connected(t, time.Minute)
	conn.Lock()
	_, _ = conn.Write([]byte("first, "))
	if taken, left := conn.TrySend([]byte("in the middle")); taken || left {
		t.Errorf("taken: %t, left: %t", taken, left)
	}
	_, _ = conn.Write([]byte("second"))
	conn.Unlock()
	_ = conn.Close()
	if got := await.Result(func() []byte { all, _ := io.ReadAll(far); return all }); string(got) != "first, second" {
		t.Errorf("%q arrives", got)
	}
}

// The deadline of an earlier packet, which left in time, is not one for later packets.
func TestAnOldDeadlineEndsNoConnection(t *testing.T) {
	const timeout = 20 * time.Millisecond
	conn, far := connected(t, timeout)
	conn.Send([]byte("a"))
	sent := time.Now()
	await.Until(func() bool { return time.Since(sent) > 2*timeout })
	if taken, left := conn.TrySend([]byte("b")); !taken || left {
		t.Errorf("taken: %t, left: %t", taken, left)
	}
	_ = conn.Close()
	if got := await.Result(func() []byte { all, _ := io.ReadAll(far); return all }); string(got) != "ab" {
		t.Errorf("%q arrives", got)
	}
}

func TestAFailedWriteEndsTheConnection(t *testing.T) {
	conn, far := connected(t, time.Minute)
	_ = far.(*net.TCPConn).SetLinger(0)
	_ = far.Close() // a reset
	await.Until(func() bool {
		conn.TrySend([]byte("a"))
		_, err := conn.socket.Write(nil)
		return err != nil
	})
}

func TestOnlyASocketOfTheSystemIsWrittenToDirectly(t *testing.T) {
	type changed struct{ *net.TCPConn } // its Write might change the bytes
	conn, _ := connected(t, time.Minute)
	if newDirect(changed{conn.socket.(*net.TCPConn)}) != nil {
		t.Error("a connection of another type is written to past its Write")
	}
}
