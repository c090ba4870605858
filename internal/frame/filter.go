package frame

import (
	"errors"
	"fmt"
	"io"
)

// bufferSize is how much a Filter reads at once, and how long a packet may be to be
// offered. Requests and replies of leases have some 300 bytes; longer packets travel as
// they would without a Filter.
const bufferSize = 4096

// Filter is a reader of a connection that takes packets out. It serves one goroutine.
type Filter struct {
	source io.Reader
	limit  int // bytes of a packet; 0: any number
	take   func(packet []byte) bool
	pause  func()

	buffer     []byte // nil until the first Read
	start, end int    // what is in it and has not been read
	passing    int    // how much is left of the packet that is passed on
	broken     bool   // something came that is not MQTT
	err        error  // of source; what is in the buffer is read first
}

// NewFilter returns a reader of source that offers each packet to take and leaves out
// those for which that returns true. The packet is good until take returns. Packets that
// are long, and all that comes after something that is not MQTT, are not offered.
//
// A packet of more than limit bytes ends the reading with a [TooLargeError] as soon as its
// header is there, before anything of it is passed on: readers of MQTT allocate what a
// header says. For the same reason a header that is not MQTT ends it with [ErrHeader]:
// there are readers that go on where the length of a packet has a fifth byte, and allocate
// 4 GiB. A limit of 0 is none, and lets such a header through.
//
// Before the filter waits for more, and before it passes on a packet that was not taken,
// it calls pause: what take has held back is to be sent then.
func NewFilter(source io.Reader, limit int, take func(packet []byte) bool, pause func()) *Filter {
	return &Filter{source: source, limit: limit, take: take, pause: pause}
}

// ErrHeader is the end of reading where a Filter with a limit meets what is no header of a
// packet: its length has more than four bytes [MQTT-1.5.5-1].
var ErrHeader = errors.New("what comes is not MQTT: the length of a packet has more than four bytes")

// TooLargeError is the end of reading where a packet has more bytes than a Filter lets
// through.
type TooLargeError struct {
	// Size is how many bytes the packet has, by its header, and Limit how many it may have.
	Size, Limit int
}

// Error names both sizes.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a packet of %d bytes, where at most %d are taken", e.Size, e.Limit)
}

// Read reads what is not taken.
func (f *Filter) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for f.passing == 0 {
		if !f.next() && !f.fill() {
			return 0, f.err
		}
	}
	for f.start == f.end {
		if !f.fill() {
			return 0, f.err
		}
	}
	n := copy(p[:min(len(p), f.passing)], f.buffer[f.start:f.end])
	f.start += n
	f.passing -= n
	return n, nil
}

// next deals with the packet at the front of the buffer, and reports false if more of it
// is needed.
func (f *Filter) next() bool {
	front := f.buffer[f.start:f.end]
	if len(front) == 0 {
		return false
	}
	size, _, ok := Size(front)
	f.broken = f.broken || !ok && len(front) >= maxHeader
	switch {
	case ok && !f.broken && f.limit > 0 && size > f.limit:
		f.start, f.err = f.end, &TooLargeError{Size: size, Limit: f.limit}
		return false
	case f.broken && f.limit > 0:
		f.start, f.err = f.end, ErrHeader
		return false
	case f.broken || f.err != nil && (!ok || size > len(front)):
		size = len(front)
	case !ok:
		return false
	case size > bufferSize:
	case size > len(front):
		return false
	case f.take(front[:size]):
		f.start += size
		return true
	}
	f.pause()
	f.passing = size
	return true
}

// fill reads more, or learns that there is no more, which it reports from then on with
// false.
func (f *Filter) fill() bool {
	if f.err != nil {
		return false
	}
	if f.buffer == nil {
		f.buffer = make([]byte, bufferSize)
	}
	if f.start > 0 {
		f.end = copy(f.buffer, f.buffer[f.start:f.end])
		f.start = 0
	}
	f.pause()
	n, err := f.source.Read(f.buffer[f.end:])
	f.end += n
	f.err = err
	return true
}
