package journal

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/tenurelock/tenure/statestore"
)

// The file has two buckets: aboutBucket with a few entries about the file, and recordsBucket
// with the records.
var (
	aboutBucket   = []byte("tenure")
	recordsBucket = []byte("records")
	formatEntry   = []byte("format") // format as a uint32, big-endian
	totalsEntry   = []byte("totals") // see totals
)

const format = 1

// A scan reads a file from beginning to end.
type scan struct {
	file    *os.File // from scanFile, for the caller to close; nil otherwise
	pages   *pages
	want    totals // as the last commit wrote them
	records []byte // describes the bucket of the records
}

// scanFile opens a file in a directory of data for a scan. It follows no symbolic link.
func scanFile(path string) (*scan, error) { return scanOpen(openRegular(path, os.O_RDONLY)) }

// scanGiven opens a file that the user named for a scan. It may be a link.
func scanGiven(path string) (*scan, error) { return scanOpen(openGiven(path)) }

func scanOpen(file *os.File, err error) (*scan, error) {
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, together(err, file.Close())
	}
	s, err := openScan(file, info.Size())
	if err != nil {
		return nil, together(err, file.Close())
	}
	s.file = file
	return s, nil
}

// openScan reads what a file says about itself. The error matches ErrDamaged, ErrForeign or
// ErrNewer, or is the reader's.
func openScan(r io.ReaderAt, size int64) (*scan, error) {
	p, err := openPages(r, size)
	if err != nil {
		return nil, err
	}
	buckets, err := p.buckets()
	if err != nil {
		return nil, err
	}
	s := &scan{pages: p, records: buckets[string(recordsBucket)]}
	described, ok := buckets[string(aboutBucket)]
	if !ok {
		return nil, fmt.Errorf("%w: it is a bbolt file of another program", ErrForeign)
	}
	var version uint32
	var sums []byte
	err = p.bucket(string(aboutBucket), described, func(e element) error {
		switch string(e.key) {
		case string(formatEntry):
			if len(e.value) != 4 {
				return damaged("the format has %d bytes", len(e.value))
			}
			version = binary.BigEndian.Uint32(e.value)
		case string(totalsEntry):
			sums = append(sums, e.value...)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case version == 0:
		return nil, damaged("it does not say which format it has")
	case version > format:
		return nil, fmt.Errorf("%w: it has format %d; this version reads formats up to %d", ErrNewer, version, format)
	case p.meta.freelist != noFreelist: // this package never writes one, so it is not checked
		return nil, damaged("it has a list of free pages")
	case s.records == nil:
		return nil, damaged("it has no records")
	}
	s.want, err = decodeTotals(sums)
	return s, err
}

// complete refuses a file with a meta page that cannot be read: perhaps it was the one of the
// last commit, and the other one is of the commit before.
func (s *scan) complete() error {
	if s.pages.other != nil {
		return damaged("the last commit may be missing: %w", s.pages.other)
	}
	return nil
}

// each calls do for each record, in the order of the identifiers, and returns its first error.
// The bytes are valid during the call. At the end it compares the totals.
func (s *scan) each(ctx context.Context, do func(id, value []byte) error) error {
	var got totals
	err := s.pages.bucket(string(recordsBucket), s.records, func(e element) error {
		if e.bucket {
			return damaged("there is a bucket among the records")
		}
		if got.count%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		got.add(e.key, e.value)
		return do(e.key, e.value)
	})
	if err != nil {
		return err
	}
	if got != s.want {
		return damaged("it has %d records with %d bytes and digest %x; the last commit wrote %d with %d bytes and digest %x",
			got.count, got.bytes, got.digest, s.want.count, s.want.bytes, s.want.digest)
	}
	return nil
}

// own returns a record with bytes of its own.
func own(id, value []byte) statestore.Record {
	room := make([]byte, 0, len(id)+len(value))
	room = append(append(room, id...), value...)
	return statestore.Record{ID: room[:len(id):len(id)], Value: room[len(id):]}
}
