package resp3

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
)

// ErrMalformed is what errors.Is finds in every error of [DecodeArray] and
// [DecodeValue]. The errors themselves are of type [*SyntaxError].
var ErrMalformed = errors.New("resp3: malformed payload")

// A SyntaxError says where and why a payload is not what it should be. It holds
// nothing of the payload, so it may be logged whoever sent that.
type SyntaxError struct {
	Offset int    // of the first byte that is wrong or missing, from the start of the payload
	Reason string // for people; not to be parsed
}

// Error returns the reason and the offset.
func (e *SyntaxError) Error() string {
	return "resp3: malformed payload: " + e.Reason + " at byte " + strconv.Itoa(e.Offset)
}

// Is reports whether target is [ErrMalformed].
func (e *SyntaxError) Is(target error) bool {
	return target == ErrMalformed
}

// Kind is the type of a [Value]. The zero Kind is none of them.
type Kind uint8

// The kinds of replies.
const (
	Simple  Kind = iota + 1 // a line of text, such as OK
	Error                   // a line of text that begins with a code, such as ERR
	Integer                 // a number
	Bulk                    // any bytes
	Null                    // nothing: the key is missing
)

// String returns the name of the kind in lower case, for messages.
func (k Kind) String() string {
	switch k {
	case Simple:
		return "simple string"
	case Error:
		return "error"
	case Integer:
		return "integer"
	case Bulk:
		return "bulk string"
	case Null:
		return "null"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// A Value is a decoded reply.
type Value struct {
	Kind Kind

	// Text is the content of a Simple, Error or Bulk, without type byte, length
	// and line ends, and not nil even if it is empty. It is a slice of the payload,
	// of which appending to it changes nothing.
	Text []byte

	// Integer is the number of an Integer.
	Integer int64
}

// minBulk is the length of the shortest bulk string, "$0\r\n\r\n".
const minBulk = 6

// DecodeValue decodes a reply, which must be the whole of payload. An array is no
// reply, and an error here.
//
// Beside the one spelling of each value it accepts what deployed stores send in two
// cases (docs/protocol.md §2.3): an error whose CR LF is missing at the end of the
// payload, and "-1" in place of ":-1", which yields an Integer. Both at once are "-1"
// alone.
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
		value.Text, err = d.bulk()
	case '*':
		err = syntaxError(0, "an array where a reply is wanted")
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

// DecodeArray decodes an array of bulk strings, such as a request or a notification,
// which must be the whole of payload. It appends the elements to dst and returns the
// extended slice, as append does: pass nil, or buffer[:0] to use a buffer again. On
// error it returns dst as it was, though elements beyond its length may be overwritten.
//
// An array may be empty. Null, an array, or any other type among the elements is an
// error, as is a null array, "*-1\r\n".
//
// The elements are slices of payload and never nil; appending to one changes neither
// payload nor another element. The error is a [*SyntaxError].
func DecodeArray(dst [][]byte, payload []byte) ([][]byte, error) {
	d := decoder{payload: payload}
	if len(payload) == 0 {
		return dst, syntaxError(0, "empty payload")
	}
	if payload[0] != '*' {
		return dst, syntaxError(0, "no array where one is wanted")
	}
	d.offset++
	start := d.offset
	count, err := d.length()
	if err != nil {
		return dst, err
	}
	// Nothing is allocated for elements that the payload has no room for.
	if count > d.remaining()/minBulk {
		return dst, syntaxError(start, "more elements than the payload can hold")
	}
	elements := slices.Grow(dst, count)
	for range count {
		element, err := d.bulk()
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

// A decoder reads a payload from front to back. Its methods start at offset, and on
// success leave it behind what they have read.
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

// end refuses whatever follows the value.
func (d *decoder) end() error {
	if d.remaining() > 0 {
		return syntaxError(d.offset, "bytes after the end of the value")
	}
	return nil
}

// lineEnd reads CR LF.
func (d *decoder) lineEnd() error {
	if d.remaining() < 2 || d.payload[d.offset] != '\r' || d.payload[d.offset+1] != '\n' {
		return syntaxError(d.offset, "no CR LF where one is wanted")
	}
	d.offset += 2
	return nil
}

// take returns the next n bytes. They must be there. The capacity ends with them, so
// that appending to the result cannot write over what follows.
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

// bulk reads a bulk string that is not null.
func (d *decoder) bulk() ([]byte, error) {
	if d.remaining() == 0 || d.payload[d.offset] != '$' {
		return nil, syntaxError(d.offset, "no bulk string where one is wanted")
	}
	d.offset++
	start := d.offset
	length, err := d.length()
	if err != nil {
		return nil, err
	}
	if length > d.remaining()-len("\r\n") {
		return nil, syntaxError(start, "bulk string longer than the payload")
	}
	data := d.take(length)
	return data, d.lineEnd()
}

// length reads the length of an array or a bulk string and the end of its line. The
// result is not above the length of the payload, so sums and products with it are safe.
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
		limit++ // two's complement has one more below zero
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

// digits reads a decimal number without sign or leading zeros. One above limit is an
// error with the reason excess; limit must be below 2^64-9.
func (d *decoder) digits(limit uint64, excess string) (uint64, error) {
	start := d.offset
	var n uint64
	for ; d.remaining() > 0; d.offset++ {
		digit := uint64(d.payload[d.offset] - '0')
		if digit > 9 { // bytes below '0' have wrapped around
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
		return 0, syntaxError(start, "no decimal number where one is wanted")
	}
	return n, nil
}
