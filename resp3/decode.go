package resp3

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
)

// ErrMalformed matches every error of [DecodeArray] and [DecodeValue]. The errors are of type
// [*SyntaxError].
var ErrMalformed = errors.New("resp3: malformed payload")

// A SyntaxError says where and why a payload is malformed. It has no part of the payload, so
// it is safe to log.
type SyntaxError struct {
	Offset int    // offset of the first wrong or missing byte in the payload
	Reason string // for humans; programs should not parse it
}

// Error returns the reason and the offset.
func (e *SyntaxError) Error() string {
	return "resp3: malformed payload: " + e.Reason + " at byte " + strconv.Itoa(e.Offset)
}

// Is reports whether target is [ErrMalformed].
func (e *SyntaxError) Is(target error) bool {
	return target == ErrMalformed
}

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

var kindNames = [...]string{Simple: "simple string", Error: "error", Integer: "integer", Bulk: "bulk string", Null: "null"}

// String returns the name of the kind in lower case, or a text such as "Kind(9)" for a value
// that is not a kind.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "Kind(" + strconv.Itoa(int(k)) + ")"
	}
	return kindNames[k]
}

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
// The Text of the result is a slice of payload. The error is a [*SyntaxError].
func DecodeValue(payload []byte) (Value, error) {
	if len(payload) == 0 {
		return Value{}, syntaxError(0, "empty payload")
	}
	var value Value
	var err error
	d := decoder{payload: payload, offset: 1}
	switch payload[0] {
	case '+':
		value.Kind = Simple
		value.Text = d.text()
		err = d.lineEnd()
	case '-':
		value.Kind = Error
		value.Text = d.text()
		if string(value.Text) == "1" {
			value = Value{Kind: Integer, Integer: -1}
		}
		if d.remaining() > 0 {
			err = d.lineEnd()
		}
	case ':':
		value.Kind = Integer
		value.Integer, err = d.integer()
	case '$':
		if bytes.HasPrefix(payload, []byte("$-1\r\n")) {
			value.Kind = Null
			d.offset = len("$-1\r\n")
			break
		}
		d.offset = 0
		value.Kind = Bulk
		value.Text, err = d.bulk(true)
	case '*':
		err = syntaxError(0, "an array instead of a reply")
	default:
		err = syntaxError(0, "unknown type")
	}
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return Value{}, err
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
// nor another element. The error is a [*SyntaxError].
func DecodeArray(dst [][]byte, payload []byte) ([][]byte, error) {
	d := decoder{payload: payload}
	if len(payload) == 0 {
		return dst, syntaxError(0, "empty payload")
	}
	if payload[0] != '*' {
		return dst, syntaxError(0, "no array")
	}
	d.offset++
	start := d.offset
	count, err := d.length()
	if err != nil {
		return dst, err
	}
	// Do not allocate for more elements than the payload can have.
	if count > d.remaining()/minBulk {
		return dst, syntaxError(start, "more elements than the payload can hold")
	}
	elements := slices.Grow(dst, count)
	for range count {
		element, err := d.bulk(false)
		if err != nil {
			return dst, err
		}
		elements = append(elements, element)
	}
	if err := d.end(); err != nil {
		return dst, err
	}
	return elements, nil
}

// A decoder reads a payload from front to back. Its methods read at offset, and on success
// move offset past what they read.
type decoder struct {
	payload []byte
	offset  int
}

func syntaxError(offset int, reason string) error {
	return &SyntaxError{Offset: offset, Reason: reason}
}

func (d *decoder) remaining() int {
	return len(d.payload) - d.offset
}

// end returns an error for bytes after the value.
func (d *decoder) end() error {
	if d.remaining() > 0 {
		return syntaxError(d.offset, "bytes after the end of the value")
	}
	return nil
}

// lineEnd reads CR LF.
func (d *decoder) lineEnd() error {
	if d.remaining() < 2 || d.payload[d.offset] != '\r' || d.payload[d.offset+1] != '\n' {
		return syntaxError(d.offset, "no CR LF")
	}
	d.offset += 2
	return nil
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

// bulk reads a bulk string that is not null. With mayEnd, the payload may end with its last byte.
func (d *decoder) bulk(mayEnd bool) ([]byte, error) {
	if d.remaining() == 0 || d.payload[d.offset] != '$' {
		return nil, syntaxError(d.offset, "no bulk string")
	}
	d.offset++
	start := d.offset
	length, err := d.length()
	if err != nil {
		return nil, err
	}
	if mayEnd && length == d.remaining() {
		return d.take(length), nil
	}
	if length > d.remaining()-len("\r\n") {
		return nil, syntaxError(start, "bulk string longer than the payload")
	}
	data := d.take(length)
	return data, d.lineEnd()
}

// length reads the length of an array or a bulk string and the end of its line. The result is
// at most the length of the payload, so that sums and products with it do not overflow.
func (d *decoder) length() (int, error) {
	if d.remaining() > 0 && d.payload[d.offset] == '-' {
		return 0, syntaxError(d.offset, "negative length")
	}
	n, err := d.digits(uint64(len(d.payload)), "length beyond the payload")
	if err != nil {
		return 0, err
	}
	return int(n), d.lineEnd()
}

// integer reads an integer and the end of its line.
func (d *decoder) integer() (int64, error) {
	start := d.offset
	limit := uint64(math.MaxInt64)
	negative := d.remaining() > 0 && d.payload[d.offset] == '-'
	if negative {
		d.offset++
		limit++ // the lowest int64 is -2^63
	}
	n, err := d.digits(limit, "integer beyond 64 bits")
	if err != nil {
		return 0, err
	}
	if negative {
		if n == 0 {
			return 0, syntaxError(start, "negative zero")
		}
		n = -n
	}
	return int64(n), d.lineEnd()
}

// digits reads a decimal number without sign or leading zeros. For a number above limit it
// returns an error with the reason excess; limit must be below 2^64-9.
func (d *decoder) digits(limit uint64, excess string) (uint64, error) {
	start := d.offset
	var n uint64
	for ; d.remaining() > 0; d.offset++ {
		digit := uint64(d.payload[d.offset] - '0')
		if digit > 9 { // or a byte below '0', which wrapped around
			break
		}
		if d.offset > start && n == 0 {
			return 0, syntaxError(start, "leading zero")
		}
		if n > limit/10 || n*10+digit > limit {
			return 0, syntaxError(start, excess)
		}
		n = n*10 + digit
	}
	if d.offset == start {
		return 0, syntaxError(start, "no decimal number")
	}
	return n, nil
}
