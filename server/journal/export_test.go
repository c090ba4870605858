package journal

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"

	"github.com/tenurelock/tenure/internal/await"
)

// SetSpaceConstant makes smaller files be compacted, until restore is called.
func SetSpaceConstant(size int64) (restore func()) {
	before := spaceConstant
	spaceConstant = size
	return func() { spaceConstant = before }
}

// Scan returns the records of a file. It refuses one without its end, unless open.
func Scan(content []byte, open bool) (map[string]string, error) {
	s, err := newScan(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, err
	}
	source := &source{scan: s, open: open}
	if err := source.complete(context.Background()); err != nil {
		return nil, err
	}
	records := make(map[string]string)
	for record := range s.counting(context.Background()) {
		records[string(record.ID)] = string(record.Value)
	}
	return records, s.err
}

// Reseal makes the checks of a head and of the frames right again, as far as their lengths lead to others.
func Reseal(content []byte) []byte {
	if len(content) < headSize {
		return content
	}
	salt := order.Uint32(content[12:])
	sealed := head(salt)
	copy(sealed[8:12], content[8:12]) // the format
	sealed = order.AppendUint32(sealed[:16], crc32.Checksum(sealed[:16], castagnoli))
	for rest := content[headSize:]; ; {
		if len(rest) < frameHead || order.Uint32(rest[4:]) > uint32(len(rest)) {
			return append(sealed, rest...)
		}
		size := frameHead + int(order.Uint32(rest[4:])) + checkSize
		if size > len(rest) {
			return append(sealed, rest...)
		}
		sealed = append(sealed, seal(bytes.Clone(rest[:size-checkSize]), salt, order.Uint64(rest[8:]))...)
		rest = rest[size:]
	}
}

// read returns the scan of a whole file.
func read(content []byte) *scan {
	s, err := newScan(bytes.NewReader(content), int64(len(content)))
	for range s.frames(context.Background()) {
	}
	if err = errors.Join(err, s.err); err != nil {
		panic(err)
	}
	return s
}

// FrameThatFollows returns a frame with a payload, behind the frames of content.
func FrameThatFollows(content, payload []byte) []byte {
	s := read(content)
	return seal(append(make([]byte, frameHead), payload...), s.salt, s.number+1)
}

// LastFrame returns where the last frame of content begins.
func LastFrame(content []byte) int { return int(read(content).last) }

// LiveBytes returns the size of the live data, as the next load finds it.
func (f *File) LiveBytes() int64 {
	s := &scan{file: f.log.file, size: f.log.size, salt: f.log.salt, at: headSize}
	if err := s.index(context.Background()); err != nil {
		panic(err)
	}
	for range s.counting(context.Background()) {
	}
	return s.live
}

// Settle waits until no compaction is under way, as a commit does.
func (f *File) Settle() error {
	if c := f.compaction; c != nil {
		await.Next(c.ended)
		f.endCompaction()
	}
	return f.log.err
}

// SetBoot changes the name of the present run of the machine, until restore is called.
func SetBoot(name string) (restore func()) {
	before := boot
	boot = func() string { return name }
	return func() { boot = before }
}

// SetRename makes call rename a copy, which is closed for that or not, until restore is called.
func SetRename(closed bool, call func(from, to string) error) (restore func()) {
	formerClosed, formerCall := closeToRename, rename
	closeToRename, rename = closed, call
	return func() { closeToRename, rename = formerClosed, formerCall }
}
