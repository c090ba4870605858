package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// The file format of bbolt, as far as reading needs it. bbolt maps the file into memory and
// trusts each page: a wrong byte makes it panic, fault, recurse without end, or skip records.
// So this reader checks everything that it uses, in memory that is bounded by the size of the
// file, before bbolt sees the file. All numbers have the byte order of the machine.
const (
	pageSize     = 4096 // of each file that this package creates
	pageHeader   = 16   // id uint64, flags uint16, count uint16, overflow uint32
	elementSize  = 16   // leaf: flags, position, key size, value size uint32; branch: position, key size uint32, page uint64
	bucketHeader = 16   // root page uint64, sequence uint64; root page 0: the page follows inline

	branchPage = 0x01
	leafPage   = 0x02
	metaPage   = 0x04

	bucketElement = 0x01

	metaMagic   = 0xED0CDAED
	metaVersion = 2
	metaSize    = 64
	noFreelist  = math.MaxUint64

	seenPages = 4096 // that one part of pages.seen has

	maxKey   = 32 << 10                // of bbolt
	maxValue = 257 << 20               // an MQTT packet has less than 256 MiB, and what a record adds is small
	maxPage  = 4 * (maxKey + maxValue) // bbolt splits a page with more than four entries

	maxDepth = 64 // a tree with at least two children in each branch is never deeper
)

// metaOf is a meta page: the root of the state that a transaction wrote.
type metaOf struct {
	root     uint64 // page of the bucket of buckets
	freelist uint64
	end      uint64 // the first page that was never used
	txid     uint64
}

// errNoMagic says that a meta page does not belong to any bbolt file.
var errNoMagic = errors.New("it does not begin as one")

// decodeMeta reads meta page id, 0 or 1, of which page has the first pageHeader+metaSize bytes.
func decodeMeta(id uint64, page []byte) (metaOf, error) {
	order := binary.NativeEndian
	body := page[pageHeader : pageHeader+metaSize]
	if magic := order.Uint32(body); magic != metaMagic {
		return metaOf{}, errNoMagic
	}
	sum := fnv.New64a()
	sum.Write(body[:56])
	if sum.Sum64() != order.Uint64(body[56:]) {
		return metaOf{}, errors.New("its checksum is wrong")
	}
	if order.Uint64(page) != id || order.Uint16(page[8:]) != metaPage {
		return metaOf{}, errors.New("its head is wrong")
	}
	if version := order.Uint32(body[4:]); version != metaVersion {
		return metaOf{}, fmt.Errorf("%w: bbolt format %d; this one reads %d", ErrNewer, version, metaVersion)
	}
	if size := order.Uint32(body[8:]); size != pageSize {
		return metaOf{}, fmt.Errorf("%w: its pages have %d bytes, the pages of a journal have %d", ErrForeign, size, pageSize)
	}
	return metaOf{root: order.Uint64(body[16:]), freelist: order.Uint64(body[32:]), end: order.Uint64(body[40:]), txid: order.Uint64(body[48:])}, nil
}

// pages reads the state of one transaction.
type pages struct {
	r    io.ReaderAt
	size int64
	meta metaOf
	// other is why one of the two meta pages cannot be read; nil if both can. Then the last
	// transaction may be missing.
	other error
	// seen has the bits of the pages that were read, in parts: a file may have holes, and need not
	// hold what its size says.
	seen map[uint64]*[seenPages / 64]uint64
	used uint64 // their number
	room []byte // for pages that continue
}

// openPages reads the meta pages of a file with size bytes.
func openPages(r io.ReaderAt, size int64) (*pages, error) {
	if size == 0 {
		return nil, damaged("the file is empty")
	}
	var page [pageHeader + metaSize]byte
	var metas [2]metaOf
	var errs [2]error
	for i := range metas {
		if _, err := r.ReadAt(page[:], int64(i)*pageSize); errors.Is(err, io.EOF) {
			errs[i] = errors.New("the file ends before it")
			if i == 0 {
				errs[i] = errNoMagic
			}
		} else if err != nil {
			return nil, err
		} else {
			metas[i], errs[i] = decodeMeta(uint64(i), page[:])
		}
	}
	p := &pages{r: r, size: size}
	switch {
	case errs[0] != nil && errs[1] != nil:
		for _, err := range errs {
			if errors.Is(err, ErrNewer) || errors.Is(err, ErrForeign) {
				return nil, err
			}
		}
		if errors.Is(errs[0], errNoMagic) {
			return nil, fmt.Errorf("%w: %w", ErrForeign, errs[0])
		}
		return nil, damaged("page 0: %w; page 1: %w", errs[0], errs[1])
	case errs[0] != nil:
		p.meta, p.other = metas[1], fmt.Errorf("page 0: %w", errs[0])
	case errs[1] != nil:
		p.meta, p.other = metas[0], fmt.Errorf("page 1: %w", errs[1])
	case metas[1].txid > metas[0].txid:
		p.meta = metas[1]
	default:
		p.meta = metas[0]
	}
	if p.meta.end < 3 || p.meta.end > uint64(size/pageSize) {
		return nil, damaged("it has %d bytes, and needs %d pages of %d: it was cut short", size, p.meta.end, pageSize)
	}
	p.seen = make(map[uint64]*[seenPages / 64]uint64)
	return p, nil
}

// fitsBolt reports whether bbolt should check the file too. For each free page it takes memory. A
// file with far more of them than a store leaves has holes in place of pages.
func (p *pages) fitsBolt() bool { return p.meta.end < 64*p.used+1<<16 }

// mark notes that a page is a part of the state. A page has one place.
func (p *pages) mark(id uint64) error {
	part := p.seen[id/seenPages]
	if part == nil {
		part = new([seenPages / 64]uint64)
		p.seen[id/seenPages] = part
	}
	word, bit := id%seenPages/64, uint64(1)<<(id%64)
	if part[word]&bit != 0 {
		return damaged("page %d has two places", id)
	}
	part[word] |= bit
	p.used++
	return nil
}

// read returns page id with its overflow. It uses room, which has the size of a page, if that is
// large enough; a leaf that continues is valid until the next one.
func (p *pages) read(id uint64, room []byte) ([]byte, error) {
	if id < 2 || id >= p.meta.end {
		return nil, damaged("page %d is outside of the %d pages", id, p.meta.end)
	}
	if _, err := p.r.ReadAt(room, int64(id)*pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if own := binary.NativeEndian.Uint64(room); own != id {
		return nil, damaged("page %d says that it is page %d", id, own)
	}
	if err := p.mark(id); err != nil {
		return nil, err
	}
	overflow := uint64(binary.NativeEndian.Uint32(room[12:]))
	if overflow == 0 {
		return room, nil
	}
	if overflow >= p.meta.end-id {
		return nil, damaged("page %d continues for %d pages, past the end", id, overflow)
	}
	if err := checkOverflow(id, room, overflow); err != nil {
		return nil, err
	}
	for next := id + 1; next <= id+overflow; next++ {
		if err := p.mark(next); err != nil {
			return nil, err
		}
	}
	var large []byte
	if size := int(overflow+1) * pageSize; binary.NativeEndian.Uint16(room[8:]) == branchPage {
		large = make([]byte, size)
	} else {
		if cap(p.room) < size {
			p.room = make([]byte, size)
		}
		large = p.room[:size]
	}
	copy(large, room)
	if _, err := p.r.ReadAt(large[pageSize:], int64(id+1)*pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return large, nil
}

// checkOverflow compares for how many pages a page continues with what its entries need, and bounds
// both before there is memory for them. page is the first of the pages. bbolt puts more than four
// entries on one page only if it does not continue, so all of their sizes are there.
func checkOverflow(id uint64, page []byte, overflow uint64) error {
	order := binary.NativeEndian
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != leafPage && flags != branchPage {
		return damaged("page %d is of type %#x, not a leaf or a branch", id, flags)
	}
	need := uint64(pageHeader + count*elementSize)
	if need > pageSize {
		return damaged("page %d continues, and has %d entries", id, count)
	}
	for i := range count {
		raw := page[pageHeader+i*elementSize:]
		var keySize, valueSize uint32
		if flags == leafPage {
			keySize, valueSize = order.Uint32(raw[8:]), order.Uint32(raw[12:])
		} else {
			keySize = order.Uint32(raw[4:])
		}
		if keySize > maxKey || valueSize > maxValue {
			return damaged("page %d: entry %d has a name of %d bytes and a value of %d", id, i, keySize, valueSize)
		}
		need += uint64(keySize) + uint64(valueSize)
	}
	if need > maxPage || overflow != (need-1)/pageSize {
		return damaged("page %d continues for %d pages; its entries have %d bytes", id, overflow, need)
	}
	return nil
}

// An element is an entry of a leaf.
type element struct {
	bucket     bool
	key, value []byte
}

// elements calls each for the elements of a page: their key, and the rest of them. The data
// must follow the array of elements without a gap, as bbolt writes them; else the number of
// elements is wrong. The keys ascend from low to high, which is not included; nil means
// without a limit. low is the first of them: the parent has it as the key of this page. bbolt
// finds a page in its parent by that key when it changes the page. With another key there,
// even one that separates the pages as well, bbolt would add the page a second time.
func elements(name string, page, low, high []byte, each func(i int, key []byte, value []byte, flags uint32, child uint64) error) error {
	order := binary.NativeEndian
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != leafPage && flags != branchPage {
		return damaged("%s is of type %#x, not a leaf or a branch", name, flags)
	}
	if flags == branchPage && count == 0 {
		return damaged("%s is a branch without children", name)
	}
	if count == 0 && low != nil {
		return damaged("%s is empty", name)
	}
	next := pageHeader + count*elementSize
	if next > len(page) {
		return damaged("%s has %d entries, more than its %d bytes hold", name, count, len(page))
	}
	for i := range count {
		at := pageHeader + i*elementSize
		raw := page[at : at+elementSize]
		var kind, position, keySize, valueSize uint32
		var child uint64
		if flags == leafPage {
			kind, position, keySize, valueSize = order.Uint32(raw), order.Uint32(raw[4:]), order.Uint32(raw[8:]), order.Uint32(raw[12:])
		} else {
			position, keySize, child = order.Uint32(raw), order.Uint32(raw[4:]), order.Uint64(raw[8:])
		}
		if uint64(at)+uint64(position) != uint64(next) {
			return damaged("%s: entry %d is at %d, not at %d", name, i, uint64(at)+uint64(position), next)
		}
		if uint64(keySize)+uint64(valueSize) > uint64(len(page)-next) {
			return damaged("%s: entry %d is longer than the page", name, i)
		}
		if keySize == 0 {
			return damaged("%s: entry %d has no name", name, i)
		}
		middle := next + int(keySize)
		end := middle + int(valueSize)
		key, value := page[next:middle:middle], page[middle:end:end]
		switch order := bytes.Compare(key, low); {
		case i == 0 && low != nil && order != 0:
			return damaged("%s begins with another key than its parent says", name)
		case i > 0 && order <= 0:
			return damaged("%s: entry %d is out of order", name, i)
		}
		if high != nil && bytes.Compare(key, high) >= 0 {
			return damaged("%s: entry %d belongs on a later page", name, i)
		}
		if err := each(i, key, value, kind, child); err != nil {
			return err
		}
		low, next = key, end
	}
	return nil
}

// tree calls each for the elements of a tree, in order. The bytes are valid during the call.
func (p *pages) tree(root uint64, each func(element) error) error {
	var rooms [maxDepth][]byte
	return p.walk(rooms[:], root, nil, nil, each)
}

func (p *pages) walk(rooms [][]byte, id uint64, low, high []byte, each func(element) error) error {
	if len(rooms) == 0 {
		return damaged("page %d is deeper than %d levels", id, maxDepth)
	}
	if rooms[0] == nil {
		rooms[0] = make([]byte, pageSize)
	}
	page, err := p.read(id, rooms[0])
	if err != nil {
		return err
	}
	name := fmt.Sprintf("page %d", id)
	if binary.NativeEndian.Uint16(page[8:]) != branchPage {
		return leaf(name, page, low, high, each)
	}
	// A child's keys end before the key of the next child.
	var child uint64
	var first []byte
	err = elements(name, page, low, high, func(i int, key, _ []byte, _ uint32, page uint64) error {
		if i > 0 {
			if err := p.walk(rooms[1:], child, first, key, each); err != nil {
				return err
			}
		}
		child, first = page, key
		return nil
	})
	if err != nil {
		return err
	}
	return p.walk(rooms[1:], child, first, high, each)
}

func leaf(name string, page, low, high []byte, each func(element) error) error {
	return elements(name, page, low, high, func(i int, key, value []byte, flags uint32, _ uint64) error {
		if flags > bucketElement {
			return damaged("%s: entry %d has unknown flags %#x", name, i, flags)
		}
		return each(element{bucket: flags == bucketElement, key: key, value: value})
	})
}

// bucket calls each for the elements of the bucket that value describes.
func (p *pages) bucket(name string, value []byte, each func(element) error) error {
	if len(value) < bucketHeader {
		return damaged("the bucket %q has %d bytes", name, len(value))
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.tree(root, each)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader {
		return damaged("the bucket %q has an inline page of %d bytes", name, len(inline))
	}
	if flags := binary.NativeEndian.Uint16(inline[8:]); flags != leafPage {
		return damaged("the bucket %q has an inline page of type %#x", name, flags)
	}
	return leaf(fmt.Sprintf("the inline page of the bucket %q", name), inline, nil, nil, each)
}

// buckets returns what describes each bucket at the top.
func (p *pages) buckets() (map[string][]byte, error) {
	found := make(map[string][]byte)
	err := p.tree(p.meta.root, func(e element) error {
		if !e.bucket {
			return damaged("there is an entry outside of all buckets")
		}
		if len(e.value) > pageSize {
			return damaged("the bucket %.64q has %d bytes", e.key, len(e.value))
		}
		if len(found) < 16 { // a foreign file may have any number
			found[string(e.key)] = bytes.Clone(e.value)
		}
		return nil
	})
	return found, err
}
