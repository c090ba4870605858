package journal

import "encoding/binary"

// totals sum up all records. Each commit writes them, so a load finds out if records are
// missing, changed, or from another commit.
type totals struct {
	count  uint64
	bytes  uint64 // of identifiers and values: the live data
	digest uint64 // the sum of the digests of the records
}

const totalsSize = 24

func (t *totals) add(id, value []byte) {
	t.count++
	t.bytes += uint64(len(id)) + uint64(len(value))
	t.digest += digest(id, value)
}

func (t *totals) remove(id, value []byte) {
	t.count--
	t.bytes -= uint64(len(id)) + uint64(len(value))
	t.digest -= digest(id, value)
}

func (t totals) encode() []byte {
	room := make([]byte, 0, totalsSize)
	room = binary.BigEndian.AppendUint64(room, t.count)
	room = binary.BigEndian.AppendUint64(room, t.bytes)
	return binary.BigEndian.AppendUint64(room, t.digest)
}

func decodeTotals(raw []byte) (totals, error) {
	if len(raw) != totalsSize {
		return totals{}, damaged("the totals have %d bytes, not %d", len(raw), totalsSize)
	}
	order := binary.BigEndian
	return totals{order.Uint64(raw), order.Uint64(raw[8:]), order.Uint64(raw[16:])}, nil
}

// digest returns 64 bits of a record: FNV-1a over the length of the identifier, the identifier
// and the value, mixed so that a sum of digests depends on all of their bits.
func digest(id, value []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	h = (h ^ uint64(len(id)&0xff)) * prime
	h = (h ^ uint64(len(id)>>8)) * prime
	for _, b := range id {
		h = (h ^ uint64(b)) * prime
	}
	for _, b := range value {
		h = (h ^ uint64(b)) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
