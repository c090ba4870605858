package journal

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

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

// AwaitCompaction waits until no compaction is under way, as a commit does.
func (f *File) AwaitCompaction() error {
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
	formerClosed, former := closeToRename, system
	closeToRename = closed
	system.rename = func(from, to string) error {
		if filepath.Base(to) != fileName {
			return former.rename(from, to)
		}
		return call(from, to)
	}
	return func() { closeToRename, system = formerClosed, former }
}

// A Call changes the files of a directory.
type Call struct {
	Kind    string // create, write, truncate, sync, rename, remove, syncdir
	File    *os.File
	Path    string // without File
	To      string // of a rename
	Content []byte
	At      int64
}

// Watch makes each Call go through watch, which makes it with do, until restore is called.
func Watch(watch func(c Call, do func() error) error) (restore func()) {
	former := system
	system.open = func(path string, flag int, mode fs.FileMode) (file *os.File, err error) {
		call := Call{Kind: "create", Path: path}
		err = watch(call, func() error { file, err = former.open(path, flag, mode); return err })
		return file, err
	}
	system.writeAt = func(file *os.File, content []byte, at int64) (n int, err error) {
		call := Call{Kind: "write", File: file, Content: bytes.Clone(content), At: at}
		err = watch(call, func() error { n, err = former.writeAt(file, content, at); return err })
		return n, err
	}
	system.truncate = func(file *os.File, size int64) error {
		return watch(Call{Kind: "truncate", File: file, At: size}, func() error { return former.truncate(file, size) })
	}
	system.sync = func(file *os.File) error {
		return watch(Call{Kind: "sync", File: file}, func() error { return former.sync(file) })
	}
	system.rename = func(from, to string) error {
		return watch(Call{Kind: "rename", Path: from, To: to}, func() error { return former.rename(from, to) })
	}
	system.remove = func(path string) error {
		return watch(Call{Kind: "remove", Path: path}, func() error { return former.remove(path) })
	}
	system.syncDirectory = func(path string) error {
		return watch(Call{Kind: "syncdir", Path: path}, func() error { return former.syncDirectory(path) })
	}
	return func() { system = former }
}
