package server

import (
	"errors"
	"os"
	"sync"
	"time"
)

// send writes a whole packet, after those that are held back.
func (c *connection) send(packet []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.writeHeld(); err != nil {
		return err
	}
	return c.write(packet)
}

// sendLast writes a packet, unless it is empty, and closes the connection. It waits for a client that does
// not read for disconnectTimeout at most, also for a write that is under way.
func (c *connection) sendLast(packet []byte) {
	deadline := time.Now().Add(disconnectTimeout)
	c.lastWriteBy.Store(&deadline)
	_ = c.socket.SetWriteDeadline(deadline) // if it fails, so does the write
	if len(packet) > 0 {
		_ = c.send(packet) // the connection ends either way
	}
	c.close()
}

const (
	// heldRoom is the usual room for packets that are held back, in bytes.
	heldRoom = 32 << 10
	// heldEnough is how many bytes are written without waiting for more.
	heldEnough = heldRoom / 2
)

// heldRooms has arrays for connections that hold packets back. Idle ones need none.
var heldRooms = sync.Pool{New: func() any { return new([heldRoom]byte) }}

// holdBack lets encode append whole packets to those that will be written next, and returns how
// many bytes it added. It does not write, and does not wait for a write: see flush.
func (c *connection) holdBack(encode func(held []byte) []byte) (added int) {
	c.holding.Lock()
	defer c.holding.Unlock()
	if c.held == nil {
		c.held = heldRooms.Get().(*[heldRoom]byte)[:0]
	}
	before := len(c.held)
	c.held = encode(c.held)
	return len(c.held) - before
}

// flush writes the packets that are held back.
func (c *connection) flush() {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.writeHeld() // if it fails, it closes the connection
}

// writeHeld is flush for a caller that has locked writing.
func (c *connection) writeHeld() error {
	c.holding.Lock()
	held := c.held
	c.held = nil
	c.holding.Unlock()
	if held == nil {
		return nil
	}
	err := c.write(held)
	if cap(held) == heldRoom {
		heldRooms.Put((*[heldRoom]byte)(held[:heldRoom]))
	}
	return err
}

// write writes, and closes the connection if that takes longer than writeTimeout. It is called
// with writing locked.
func (c *connection) write(p []byte) error {
	deadline := time.Now().Add(writeTimeout)
	if last := c.lastWriteBy.Load(); last != nil && last.Before(deadline) {
		deadline = *last
	}
	_ = c.socket.SetWriteDeadline(deadline) // fails on a closed connection, as the write will
	_, err := c.socket.Write(p)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && c.lastWriteBy.Load() == nil {
			c.slow.Store(true)
		}
		c.close()
	}
	return err
}
