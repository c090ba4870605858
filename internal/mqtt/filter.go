package mqtt

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/eclipse/paho.golang/packets"
)

const (
	// leastBuffer is the size of the first buffer. Most connections are idle.
	leastBuffer = 512
	// bufferSize is the size of the buffer of a busy connection. Requests and replies of
	// leases have some 300 bytes.
	bufferSize = 4096
	// piece is how much of a large packet a Filter reads at once: the system call keeps the
	// processor for some ten microseconds.
	piece = 64 << 10
)

// Filter reads from a connection and checks each packet. It is not safe for concurrent use.
//
// Its buffer grows with the bytes that arrived, not with the length in a header, and shrinks
// before the Filter waits for the packet after a large one.
//
// A malformed length ends the reading with [ErrHeader]. Next does not return the beginning of a packet that Source did
// not deliver completely.
type Filter struct {
	Source io.Reader
	// Limit is the largest size of a packet in bytes; 0: MQTT's own limit. A larger packet
	// ends the reading with a [TooLargeError] as soon as its header has arrived.
	Limit int
	// Others, if not 0, is the limit for the first packet and for all that are not a PUBLISH.
	Others int
	// First, if not 0, is the limit for the first packet, a CONNECT.
	First int
	// Check, if not nil, is called with each packet first. Its error ends the reading.
	Check func(packet []byte) error
	// Pause, if not nil, is called before the Filter waits for more bytes, and at the end. Answers to
	// packets may be held back until then.
	Pause func()
	// Reserve, if not nil, is called before the buffer grows beyond the size for small packets,
	// with the number of bytes. Its error ends the reading. It is called with a negative
	// number when the buffer shrinks, and at the end of the reading at the latest.
	Reserve func(bytes int) error

	buffer     []byte // nil until the first call of Next
	start, end int    // the unread part of it
	begun      bool   // the first packet was checked
	err        error  // ends the reading, after the bytes in the buffer
	reserved   int    // bytes that Reserve has granted
}

// ErrHeader is the error for a packet with a malformed length, of more than four bytes or of
// more than it needs [MQTT-1.5.5-1]. paho v0.23.0 reads a fifth byte and allocates up to 4
// GiB.
var ErrHeader = Refuse(Malformed, "the data is not MQTT: the length of a packet is malformed")

// TooLargeError is the error for a packet that is larger than the limit of a Filter.
type TooLargeError struct {
	// Size is the size of the packet in bytes, from its header, and Limit the largest size
	// allowed.
	Size, Limit int
}

// ErrTooLarge matches each [TooLargeError].
var ErrTooLarge = errors.New("the packet is too large")

// Unwrap returns ErrTooLarge.
func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

// Error names both sizes.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a packet of %d bytes, and at most %d are accepted", e.Size, e.Limit)
}

// Next returns the next packet, whole and checked. It is valid until the next call. An error ends the reading:
// ErrHeader, a *TooLargeError, or what Check, Reserve or the source returned.
func (f *Filter) Next() ([]byte, error) {
	for {
		if packet := f.next(); packet != nil {
			return packet, nil
		}
		if !f.fill() {
			return nil, f.err
		}
	}
}

// Incomplete reports whether bytes have arrived that Next has not returned, also at the end.
func (f *Filter) Incomplete() bool { return f.start < f.end }

// next returns the packet at the front of the buffer, checked, or nil if the packet is not complete or the
// reading has ended.
func (f *Filter) next() []byte {
	front := f.buffer[f.start:f.end]
	size, _, ok := Size(front)
	if !ok {
		if Broken(front) {
			f.fail(ErrHeader)
		}
		return nil
	}
	if limit := f.limit(Type(front)); size > limit {
		f.fail(&TooLargeError{Size: size, Limit: limit})
		return nil
	}
	if size > len(front) {
		return nil
	}
	packet := front[:size:size]
	if f.Check != nil {
		if err := f.Check(packet); err != nil {
			f.fail(err)
			return nil
		}
	}
	f.begun, f.start = true, f.start+size
	return packet
}

// limit returns the largest size in bytes of the next packet, which is of this kind.
func (f *Filter) limit(kind byte) int {
	const most = MaxHeader + MaxRemaining
	limit := cmp.Or(f.Limit, most)
	if !f.begun {
		limit = min(limit, cmp.Or(f.First, most))
	}
	if !f.begun || kind != packets.PUBLISH {
		limit = min(limit, cmp.Or(f.Others, most))
	}
	return limit
}

// fail ends the reading. Next returns nothing more from the buffer.
func (f *Filter) fail(err error) {
	f.pause()
	f.buffer, f.start, f.end, f.err = nil, 0, 0, err
	_ = f.take(0)
}

func (f *Filter) pause() {
	if f.Pause != nil {
		f.Pause()
	}
}

// take calls Reserve for a buffer of length bytes. It fails only if the buffer grows.
func (f *Filter) take(length int) error {
	more := max(0, length-bufferSize) - f.reserved
	if f.Reserve == nil || more == 0 {
		return nil
	}
	if err := f.Reserve(more); err != nil {
		return err
	}
	f.reserved += more
	return nil
}

// fill reads more bytes. It reports false when there are no more.
func (f *Filter) fill() bool {
	f.pause() // also at the end: the last packets may have arrived with the error
	if f.err != nil {
		return false
	}
	if err := f.makeSpace(); err != nil {
		f.fail(err)
		return false
	}
	if len(f.buffer) > bufferSize {
		// Read does not wait if more bytes have arrived already: without this the goroutine
		// would run until the runtime preempts it after 10 ms.
		runtime.Gosched()
	}
	n, err := f.Source.Read(f.buffer[f.end:min(len(f.buffer), f.end+piece)])
	f.end += n
	if f.err = err; err != nil {
		_ = f.take(0) // the buffer does not outlive the connection
	}
	return true
}

// makeSpace moves the unread bytes to the front of the buffer, and grows or shrinks it.
func (f *Filter) makeSpace() error {
	kept := f.buffer[f.start:f.end]
	length := len(f.buffer)
	switch {
	case length < leastBuffer:
		length = leastBuffer
	case length < bufferSize && f.end == length:
		length *= 2 // the latest read filled it
	case len(kept) == length:
		size, _, _ := Size(kept)
		length = min(2*length, max(size, bufferSize))
	case length > bufferSize && len(kept) < bufferSize/2:
		length = bufferSize // a large packet is gone
	}
	into := f.buffer
	if length != len(f.buffer) {
		if err := f.take(length); err != nil {
			return err
		}
		into = make([]byte, length)
	}
	f.start, f.end = 0, copy(into, kept)
	f.buffer = into
	return nil
}
