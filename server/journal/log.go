package journal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"io"
	"iter"
	"os"
	"slices"
	"sync/atomic"

	"github.com/tenurelock/tenure/statestore"
)

// The file has a head, and then frames:
//
//	head    magic (8 bytes), format (4), salt (4), check (4)
//	frame   marker (4), length of the payload (4), number (8), check (4), payload, check (4)
//	record  in a payload: length of the ID, length of the value + 1 or 0 if it is gone, ID, value
//
// Numbers have the byte order of networks, and lengths in a payload are uvarints. A check is the
// CRC32C of all before it in the head or the frame. In a frame it begins with the salt, which is
// random. So what an earlier file left on the disk is no frame of this one, and a client cannot put
// one into a value. The frames of a file count up from 1. A frame without records closes the file.
const (
	magic     = "\x89tenure\n"
	format    = 1
	headSize  = 20
	marker    = "\xf5\x1c\xa7\x4e" // no UTF-8
	frameHead = 20
	checkSize = 4

	closingFrame = frameHead + checkSize // its size

	// maxPayload bounds what a load believes. A group has the value of one packet of MQTT, which has less
	// than 256 MiB.
	maxPayload = 288 << 20
	maxFrame   = frameHead + maxPayload + checkSize
	// fullFrame is how large a frame gets before a commit or a copy begins another one.
	fullFrame = 1 << 20
	readSize  = 256 << 10
)

var (
	order      = binary.BigEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// seal completes a frame, which has space for its head, and its payload.
func seal(frame []byte, salt uint32, number uint64) []byte {
	copy(frame, marker)
	order.PutUint32(frame[4:], uint32(len(frame)-frameHead))
	order.PutUint64(frame[8:], number)
	order.PutUint32(frame[16:], crc32.Update(salt, castagnoli, frame[:16]))
	return order.AppendUint32(frame, crc32.Update(salt, castagnoli, frame))
}

// opened returns the length and the number that the head of a frame says. The number is 0 if it is none.
func opened(head []byte, salt uint32) (length int64, number uint64) {
	if string(head[:4]) != marker || order.Uint32(head[16:]) != crc32.Update(salt, castagnoli, head[:16]) {
		return 0, 0
	}
	return int64(order.Uint32(head[4:])), order.Uint64(head[8:])
}

// payload returns the records of a frame.
func payload(frame []byte) []byte { return frame[frameHead : len(frame)-checkSize] }

// head returns the head of a file.
func head(salt uint32) []byte {
	raw := order.AppendUint32(order.AppendUint32([]byte(magic), format), salt)
	return order.AppendUint32(raw, crc32.Checksum(raw, castagnoli))
}

// A scan reads a file from beginning to end, and believes nothing.
type scan struct {
	file io.ReaderAt
	size int64 // of the file, or the part of it to read
	salt uint32

	at     int64  // where the next frame begins
	last   int64  // where the one before it begins
	number uint64 // of that
	closed bool   // that has no records
	frame  []byte
	passed *atomic.Int64 // counts the bytes that were read, if it is not nil

	counts []bool // for each record, whether it counts
	live   int64  // bytes of their IDs and values
	err    error  // why frames, records or counting has ended early
}

// scanFile reads the head of a file. The error matches ErrDamaged, ErrForeign or ErrNewer, or is of the
// system.
func scanFile(file *os.File) (*scan, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return newScan(file, info.Size())
}

func newScan(file io.ReaderAt, size int64) (*scan, error) {
	head := make([]byte, headSize)
	n, err := file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	version := order.Uint32(head[8:])
	switch {
	case !bytes.HasPrefix(head[:n], []byte(magic)[:min(n, len(magic))]):
		return nil, fmt.Errorf("%w: it does not begin as one", ErrForeign)
	case n < headSize:
		return nil, damaged("it was cut short in its head")
	case order.Uint32(head[16:]) != crc32.Checksum(head[:16], castagnoli):
		return nil, damaged("the checksum of its head is wrong")
	case version != format:
		return nil, fmt.Errorf("%w: it has format %d; this version reads format %d", ErrNewer, version, format)
	}
	return &scan{file: file, size: size, salt: order.Uint32(head[12:]), at: headSize}, nil
}

// endsClosed reports whether the last bytes of the file are a frame that closes it.
func (s *scan) endsClosed() (bool, error) {
	frame := make([]byte, closingFrame)
	if _, err := s.file.ReadAt(frame, max(0, s.size-closingFrame)); err != nil && err != io.EOF {
		return false, err
	}
	_, number := opened(frame, s.salt)
	return bytes.Equal(frame, seal(make([]byte, frameHead), s.salt, number)), nil
}

// rest returns what begins at s.at.
func (s *scan) rest() io.Reader { return io.NewSectionReader(s.file, s.at, s.size-s.at) }

// frames returns the frames from s.at on, in order. It ends before one that is not whole, as a crash
// during its commit leaves it; that must be the last one.
func (s *scan) frames(ctx context.Context) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		in := bufio.NewReaderSize(s.rest(), readSize)
		for s.at < s.size {
			if s.err = context.Cause(ctx); s.err != nil {
				return
			}
			whole := false
			if whole, s.err = s.read(in); !whole || s.err != nil || !yield(s.frame) {
				return
			}
			s.last, s.at = s.at, s.at+int64(len(s.frame))
			if s.number++; s.passed != nil {
				s.passed.Add(int64(len(s.frame)))
			}
			s.closed = len(s.frame) == closingFrame
		}
	}
}

// read reads a frame into s.frame. whole is false if it is one that a crash can leave.
func (s *scan) read(in *bufio.Reader) (whole bool, err error) {
	start, err := in.Peek(frameHead)
	if err == io.EOF {
		return false, nil
	} else if err != nil {
		return false, err
	}
	length, number := opened(start, s.salt)
	size := frameHead + length + checkSize
	switch {
	case number != s.number+1:
		return false, s.searchLater()
	case length > maxPayload:
		return false, damaged("commit %d, at %d, says that it has %d bytes", number, s.at, length)
	case size > s.size-s.at:
		return false, nil
	}
	s.frame = slices.Grow(s.frame[:0], int(size))[:size]
	if _, err := io.ReadFull(in, s.frame); err != nil {
		return false, err
	}
	body, check := s.frame[:size-checkSize], s.frame[size-checkSize:]
	whole = order.Uint32(check) == crc32.Update(s.salt, castagnoli, body)
	if !whole && s.at+size < s.size {
		err = damaged("the checksum of commit %d, at %d, is wrong, and it is not the last one", number, s.at)
	}
	return whole, err
}

// searchLater returns an error if a frame with a later number comes after s.at, where none begins. A
// commit is on the disk before the next one begins, so the missing one is damaged.
func (s *scan) searchLater() error {
	if rest := s.size - s.at; rest > maxFrame {
		return damaged("there is no commit at %d, and %d bytes follow", s.at, rest)
	}
	in := bufio.NewReaderSize(s.rest(), readSize)
	for {
		start, err := in.Peek(frameHead)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, number := opened(start, s.salt); number > s.number {
			return damaged("commit %d, at %d, is not readable, and commit %d follows", s.number+1, s.at, number)
		}
		_, _ = in.Discard(1)
	}
}

// records returns the records from s.at on, in order. Their bytes are valid until the next one.
func (s *scan) records(ctx context.Context) iter.Seq[statestore.Record] {
	return func(yield func(statestore.Record) bool) {
		for frame := range s.frames(ctx) {
			for rest := payload(frame); len(rest) > 0; {
				var r statestore.Record
				if r, rest = parse(rest); r.ID == nil {
					s.err = damaged("commit %d, at %d, has a record that is none", s.number+1, s.at)
					return
				}
				if !yield(r) {
					return
				}
			}
		}
	}
}

// parse returns the record with which raw begins, and what follows. There is no ID if it is none.
func parse(raw []byte) (r statestore.Record, rest []byte) {
	id, n := binary.Uvarint(raw)
	value, m := binary.Uvarint(raw[max(n, 0):])
	if n <= 0 || m <= 0 || id == 0 || id > statestore.MaxID {
		return r, nil
	}
	raw = raw[n+m:]
	if left := uint64(len(raw)); id > left || value > left-id+1 {
		return r, nil
	}
	r.ID, raw = raw[:id:id], raw[id:]
	if value > 0 {
		r.Value, raw = raw[:value-1:value-1], raw[value-1:]
	}
	return r, raw
}

// A hash stands for an ID: 24 bytes for each record that counts are enough to find it. Its seeds are random,
// so a client cannot make two IDs with the same one, and by chance there are none.
type hash [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// index reads the file to the end, and finds the records that count: the latest of each ID.
func (s *scan) index(ctx context.Context) error {
	latest := make(map[hash]int)
	for r := range s.records(ctx) {
		id := hash{maphash.Bytes(seeds[0], r.ID), maphash.Bytes(seeds[1], r.ID)}
		if former, ok := latest[id]; ok {
			s.counts[former] = false
		}
		if r.Value == nil {
			delete(latest, id)
		} else {
			latest[id] = len(s.counts)
		}
		s.counts = append(s.counts, r.Value != nil)
	}
	return s.err
}

// counting returns the records that index has found, in the order of their commits.
func (s *scan) counting(ctx context.Context) iter.Seq[statestore.Record] {
	return func(yield func(statestore.Record) bool) {
		again := &scan{file: s.file, size: s.at, salt: s.salt, at: headSize, passed: s.passed}
		n := -1
		for r := range again.records(ctx) {
			if n++; n >= len(s.counts) {
				break
			}
			if !s.counts[n] {
				continue
			}
			s.live += int64(len(r.ID) + len(r.Value))
			if !yield(r) {
				return
			}
		}
		if s.err = again.err; s.err == nil && (again.at != s.at || again.number != s.number || n != len(s.counts)-1) {
			s.err = damaged("it changed while it was read")
		}
	}
}

// A writer appends frames to a file. After its first error it writes nothing more.
type writer struct {
	file   *os.File
	salt   uint32
	size   int64  // where the next frame begins
	number uint64 // of the frame before
	frame  []byte // the next one: space for its head, and its records
	err    error
}

// newWriter returns a writer to a file that has its head.
func newWriter(file *os.File, salt uint32) *writer {
	return &writer{file: file, salt: salt, size: headSize, frame: make([]byte, frameHead)}
}

// discard closes the file, and removes it.
func (w *writer) discard() error {
	_ = w.file.Close()
	return removeIfThere(w.file.Name())
}

// put adds a record to the next frame. A value of nil says that it is gone.
func (w *writer) put(r statestore.Record) {
	if w.err == nil && (len(r.ID) == 0 || len(r.ID) > statestore.MaxID) {
		w.err = fmt.Errorf("a record has an identifier of %d bytes; 1 to %d are allowed", len(r.ID), statestore.MaxID)
	}
	w.frame = binary.AppendUvarint(w.frame, uint64(len(r.ID)))
	size := uint64(0)
	if r.Value != nil {
		size = uint64(len(r.Value)) + 1
	}
	w.frame = append(append(binary.AppendUvarint(w.frame, size), r.ID...), r.Value...)
}

// flush writes the next frame.
func (w *writer) flush() {
	size := len(w.frame) - frameHead
	if size > maxPayload && w.err == nil {
		w.err = fmt.Errorf("a commit has %d bytes; %d are allowed", size, maxPayload)
	}
	if w.err == nil {
		w.frame = seal(w.frame, w.salt, w.number+1)
		_, w.err = system.writeAt(w.file, w.frame, w.size)
		w.size += int64(len(w.frame))
		w.number++
	}
	if cap(w.frame) > 4*fullFrame {
		w.frame = make([]byte, frameHead)
	}
	w.frame = w.frame[:frameHead]
}

// sync writes the next frame, if it has records, and waits until the disk has the file.
func (w *writer) sync() error {
	if len(w.frame) > frameHead {
		w.flush()
	}
	if w.err == nil {
		w.err = system.sync(w.file)
	}
	return w.err
}

// syncFull is sync, if the next frame is full.
func (w *writer) syncFull() {
	if len(w.frame) >= fullFrame {
		_ = w.sync() // kept
	}
}

// close writes a frame that closes the file, and waits until the disk has it. It is not the disk's first:
// a crash could leave it, and not the one before.
func (w *writer) close() error {
	if w.sync() == nil {
		w.flush()
	}
	return w.sync()
}
