package resp3

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrMalformed matches every error of [DecodeArray] and [DecodeValue]. Their texts say where and why a payload is
// malformed. They have no part of the payload, so they are safe to log.
var ErrMalformed = errors.New("resp3: malformed payload")

// Kind is the type of a [Value]. The zero Kind is not a type of RESP3.
type Kind uint8

// The kinds of replies.
const (
	Simple  Kind = iota + 1 // a line of text, such as OK
	Error                   // a line of text that begins with a code, such as ERR
	Integer                 // a number
	Bulk                    // any bytes
	Null                    // nothing: the key is missing
)

var kindNames = [...]string{"none", "simple string", "error", "integer", "bulk string", "null", "unknown"}

// String returns the name of the kind in lower case.
func (k Kind) String() string { return kindNames[min(int(k), len(kindNames)-1)] }

// A Value is a decoded reply.
type Value struct {
	Kind Kind

	// Text is the content of a Simple, Error or Bulk, without type byte, length and line
	// ends. It is not nil, even if it is empty. It is a slice of the payload; appending to
	// it does not change the payload.
	Text []byte

	// Integer is the number of an Integer.
	Integer int64
}

// minBulk is the length of the shortest bulk string, "$0\r\n\r\n".
const minBulk = 6

// DecodeValue decodes a reply, which must be the whole of payload. It returns an error for an
// array, which is not a reply.
//
// It accepts three more spellings, because they are published or stores send them (docs/protocol.md §2.3):
// an error or a bulk string without its CR LF at the end of the payload, and "-1" for ":-1", which
// is an Integer.
//
// The Text of the result is a slice of payload. The error matches [ErrMalformed].
func DecodeValue(payload []byte) (value Value, err error) {
	d := decoder{payload: payload}
	switch d.next() {
	case '+':
		value = Value{Kind: Simple, Text: d.text()}
		d.lineEnd()
	case '-':
		value = Value{Kind: Error, Text: d.text()}
		if string(value.Text) == "1" {
			value = Value{Kind: Integer, Integer: -1}
		}
		if d.remaining() > 0 {
			d.lineEnd()
		}
	case ':':
		value = Value{Kind: Integer, Integer: d.number()}
	case '$':
		if null := []byte("$-1\r\n"); bytes.HasPrefix(payload, null) {
			value.Kind, d.offset = Null, len(null)
		} else {
			value = Value{Kind: Bulk, Text: d.data(true)}
		}
	default:
		d.fail(0, "no reply")
	}
	if d.end(); d.err != nil {
		return Value{}, d.err
	}
	return value, nil
}

// DecodeArray decodes an array of bulk strings, such as a request or a notification, which
// must be the whole of payload. It appends the elements to dst and returns the extended
// slice, as append does: pass nil, or buffer[:0] to reuse a buffer. On error it returns dst
// with its length and elements unchanged, but may have overwritten the elements beyond its
// length.
//
// An array may be empty. It returns an error for elements of any other type, null included,
// and for a null array, "*-1\r\n".
//
// The elements are slices of payload and never nil; appending to one changes neither payload
// nor another element. The error matches [ErrMalformed].
func DecodeArray(dst [][]byte, payload []byte) ([][]byte, error) {
	d := decoder{payload: payload}
	if d.next() != '*' {
		d.fail(0, "no array")
	}
	count := d.length()
	// Do not allocate for more elements than the payload can have.
	if count > d.remaining()/minBulk {
		d.fail(1, "more elements than the payload can hold")
		count = 0
	}
	elements := slices.Grow(dst, count)
	for d.err == nil && len(elements) < len(dst)+count {
		if d.next() != '$' {
			d.fail(d.offset-1, "no bulk string")
		}
		elements = append(elements, d.data(false))
	}
	if d.end(); d.err != nil {
		return dst, d.err
	}
	return elements, nil
}

// A decoder reads a payload from front to back. After its first error it is at the end.
type decoder struct {
	payload []byte
	offset  int
	err     error
}

func (d *decoder) fail(offset int, reason string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s at byte %d", ErrMalformed, reason, max(offset, 0))
	}
	d.offset = len(d.payload)
}

func (d *decoder) remaining() int { return len(d.payload) - d.offset }

// next returns the next byte; 0: there is none.
func (d *decoder) next() byte {
	if d.remaining() == 0 {
		return 0
	}
	d.offset++
	return d.payload[d.offset-1]
}

// end fails if there are bytes after the value.
func (d *decoder) end() {
	if d.remaining() > 0 {
		d.fail(d.offset, "bytes after the end of the value")
	}
}

// lineEnd reads CR LF.
func (d *decoder) lineEnd() {
	if d.remaining() < 2 || d.payload[d.offset] != '\r' || d.payload[d.offset+1] != '\n' {
		d.fail(d.offset, "no CR LF")
		return
	}
	d.offset += 2
}

// take returns the next n bytes, which must exist. The capacity of the result is n, so that
// appending to it does not overwrite the payload.
func (d *decoder) take(n int) []byte {
	end := d.offset + n
	taken := d.payload[d.offset:end:end]
	d.offset = end
	return taken
}

// text reads up to the first CR or LF, or to the end of the payload.
func (d *decoder) text() []byte {
	n := bytes.IndexAny(d.payload[d.offset:], "\r\n")
	if n < 0 {
		n = d.remaining()
	}
	return d.take(n)
}

// data reads a bulk string after its first byte. With mayEnd, the payload may end with its last byte.
func (d *decoder) data(mayEnd bool) []byte {
	start, length := d.offset, d.length()
	if mayEnd && length == d.remaining() {
		return d.take(length)
	}
	if length > d.remaining()-len("\r\n") {
		d.fail(start, "bulk string longer than the payload")
		return nil
	}
	data := d.take(length)
	d.lineEnd()
	return data
}

// length reads the length of an array or a bulk string and the end of its line. The result is
// at most the length of the payload, so that sums and products with it do not overflow.
func (d *decoder) length() int {
	start, n := d.offset, d.number()
	if n < 0 || n > int64(len(d.payload)) {
		d.fail(start, "length beyond the payload")
		return 0
	}
	return int(n)
}

// number reads an integer as AppendInteger writes it, and the end of its line.
func (d *decoder) number() int64 {
	start := d.offset
	isNegative := d.remaining() > 0 && d.payload[start] == '-'
	if isNegative {
		d.offset++
	}
	first, n := d.offset, int64(0) // n is not positive: the lowest int64 has no positive one
	for ; d.remaining() > 0; d.offset++ {
		digit := int64(d.payload[d.offset]) - '0'
		if digit < 0 || digit > 9 {
			break
		}
		next := n*10 - digit
		if n < math.MinInt64/10 || next > 0 {
			d.fail(start, "a number beyond 64 bits")
			return 0
		}
		n = next
	}
	count := d.offset - first
	isPadded := count > 0 && d.payload[first] == '0' && (count > 1 || isNegative)
	if count == 0 || isPadded || !isNegative && n == math.MinInt64 {
		d.fail(start, "no decimal number")
		return 0
	}
	if !isNegative {
		n = -n
	}
	d.lineEnd()
	return n
}
