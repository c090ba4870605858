package frame

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/tenurelock/tenure/internal/wire"
)

const (
	// leastBuffer is how much room a Filter begins with. Most connections are idle.
	leastBuffer = 512
	// bufferSize is how much a Filter reads at once where much arrives, and the room that
	// it keeps. Requests and replies of leases have some 300 bytes.
	bufferSize = 4096
	// piece is how much of a large packet a Filter reads at once: the system call takes some
	// ten microseconds for as much, in which no other goroutine has the processor.
	piece = 64 << 10
)

// Filter is a reader of a connection that checks each packet and takes some out. What it
// passes on are whole packets that were checked. It serves one goroutine.
//
// It holds one packet at a time. Its buffer grows with what has arrived, not by what a
// header promises, and a large one is given up before the Filter waits for the next packet.
type Filter struct {
	source  io.Reader
	options FilterOptions

	buffer     []byte // nil until the first Read
	start, end int    // what is in it and has not been read
	passing    int    // how much is left of the packet that is passed on, all of it in the buffer
	begun      bool   // the first packet was checked
	err        error  // the end of reading; what is in the buffer comes first
	room       int    // bytes for which Room was asked
}

// FilterOptions configures a Filter. The zero value passes all packets on.
type FilterOptions struct {
	// Limit is how many bytes a packet may have; 0: as many as MQTT allows. A larger one
	// ends the reading with a [TooLargeError] as soon as its header is there.
	Limit int
	// First, if not 0, is that limit for the first packet, a CONNECT.
	First int
	// Check, if not nil, is called with each packet before anything else is done with it.
	// Its error ends the reading.
	//
	// If there is a limit for the first packet and it is too large, Check gets the beginning
	// of it: as much as there is, and enough to tell the version of MQTT. Its error then
	// stands for the TooLargeError.
	Check func(packet []byte) error
	// Take, if not nil, is offered each packet. Those for which it returns true are left
	// out. A packet is good until Take returns.
	Take func(packet []byte) bool
	// Pause, if not nil, is called before the Filter waits for more, before it passes on a
	// packet that was not taken, and at the end: what Take has held back is to be sent
	// then.
	Pause func()
	// Room, if not nil, is asked before the buffer grows beyond what a Filter keeps for small
	// packets, with how many bytes that is. Its error ends the reading. It is told with a
	// negative number when the room is given up: at the end of the reading, at the latest.
	Room func(bytes int) error
}

// NewFilter returns a reader of source. What is not MQTT ends the reading with [ErrHeader].
// What is left of a packet that source did not deliver to its end is not passed on.
func NewFilter(source io.Reader, options FilterOptions) *Filter {
	if options.Pause == nil {
		options.Pause = func() {}
	}
	return &Filter{source: source, options: options}
}

// ErrHeader is the end of reading where a Filter meets what is no header of a packet: its
// length has more than four bytes, or more than it needs [MQTT-1.5.5-1]. There are readers
// that go on where it has a fifth byte, and allocate 4 GiB.
var ErrHeader = errors.New("what comes is not MQTT: the length of a packet is malformed")

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

// Read reads what is not taken. It never reads beyond the end of a packet.
func (f *Filter) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for f.passing == 0 {
		if !f.next() && !f.fill() {
			return 0, f.err
		}
	}
	n := copy(p[:min(len(p), f.passing)], f.buffer[f.start:f.end])
	f.start += n
	f.passing -= n
	return n, nil
}

// next deals with the packet at the front of the buffer, and reports false if more of it
// is needed or the reading has ended.
func (f *Filter) next() bool {
	front := f.buffer[f.start:f.end]
	size, _, ok := wire.Size(front)
	if !ok {
		if wire.Broken(front) {
			f.fail(ErrHeader)
		}
		return false
	}
	if limit := f.limit(); limit > 0 && size > limit {
		return f.tooLarge(front, size, limit)
	}
	if size > len(front) {
		return false
	}
	packet := front[:size:size]
	if f.options.Check != nil {
		if err := f.options.Check(packet); err != nil {
			f.fail(err)
			return false
		}
	}
	f.begun = true
	if f.options.Take != nil && f.options.Take(packet) {
		f.start += size
		return true
	}
	f.options.Pause()
	f.passing = size
	return true
}

// limit returns how many bytes the next packet may have; 0: any number.
func (f *Filter) limit() int {
	if f.begun || f.options.First == 0 || f.options.Limit > 0 && f.options.Limit < f.options.First {
		return f.options.Limit
	}
	return f.options.First
}

// tooLarge ends the reading at a packet that is too large, unless more of it is needed to
// say so. It returns false, as next does then.
func (f *Filter) tooLarge(front []byte, size, limit int) bool {
	var err error = &TooLargeError{Size: size, Limit: limit}
	if !f.begun && f.options.First > 0 && f.options.Check != nil {
		if !wire.ShowsVersion(front) && f.err == nil {
			return false
		}
		if refusal := f.options.Check(front); refusal != nil {
			err = refusal
		}
	}
	f.fail(err)
	return false
}

// fail ends the reading. Nothing that is in the buffer is passed on any more.
func (f *Filter) fail(err error) {
	f.options.Pause()
	f.buffer, f.start, f.end, f.err = nil, 0, 0, err
	_ = f.take(0)
}

// take makes it known that the buffer is to have so many bytes. The error is one of Room, which
// refuses nothing that is given up.
func (f *Filter) take(length int) error {
	more := max(0, length-bufferSize) - f.room
	if f.options.Room == nil || more == 0 {
		return nil
	}
	if err := f.options.Room(more); err != nil {
		return err
	}
	f.room += more
	return nil
}

// fill reads more, or learns that there is no more, which it reports from then on with
// false.
func (f *Filter) fill() bool {
	if f.err != nil {
		f.options.Pause() // the last packets may have come with it
		return false
	}
	f.options.Pause()
	if err := f.makeRoom(); err != nil {
		f.fail(err)
		return false
	}
	if len(f.buffer) > bufferSize {
		// Where more is there already, Read does not wait: without this the goroutine would go
		// on until it is preempted, after 10 ms, and so would each of a hundred others.
		runtime.Gosched()
	}
	n, err := f.source.Read(f.buffer[f.end:min(len(f.buffer), f.end+piece)])
	f.end += n
	if f.err = err; err != nil {
		_ = f.take(0) // the buffer does not outlive the connection
	}
	return true
}

// makeRoom moves what is in the buffer to its front, and sees to it that there is room
// behind.
func (f *Filter) makeRoom() error {
	kept := f.buffer[f.start:f.end]
	length := len(f.buffer)
	switch {
	case length < leastBuffer:
		length = leastBuffer
	case length < bufferSize && f.end == length:
		length *= 2 // as much has come as there was room for
	case len(kept) == length:
		size, _, _ := wire.Size(kept)
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
