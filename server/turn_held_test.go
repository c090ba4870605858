package server

import (
	"net"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/quota"
	"github.com/tenurelock/tenure/server/internal/turns"
)

// A goroutine holds answers back in its turn. If it waited there for another goroutine that writes to
// a client that does not read, all other clients would wait for that client too.
func TestAnswersAreHeldBackWhileAWriteIsStuck(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	conn := newConnection(near, &Options{MaxPacketSize: 1 << 20, Limits: Limits{OutgoingBytes: 1 << 20}}, turns.New(1), quota.New(1<<30), newWriteLimiter())
	stuck := make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte("nobody reads this"))
		stuck <- err
	}()
	for conn.writing.TryLock() { // until the write is under way
		conn.writing.Unlock()
		time.Sleep(time.Millisecond)
	}
	held := make(chan int, 1)
	go func() { held <- conn.holdBack(func(held []byte) []byte { return append(held, "answer"...) }) }()
	if got := await.Receive(held); got != len("answer") {
		t.Errorf("%d bytes are held back", got)
	}
	select {
	case err := <-stuck:
		t.Errorf("the write was not stuck: %v", err)
	default:
	}
	_ = conn.Close()
	if err := await.Receive(stuck); err == nil {
		t.Error("the write reached a client that reads nothing")
	}
}
