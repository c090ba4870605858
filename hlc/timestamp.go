package hlc

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrMalformed matches the errors of [Parse], [ParseToken] and the text methods for a
// text or a value that is not a well-formed timestamp.
var ErrMalformed = errors.New("hlc: malformed timestamp")

const (
	// maxText is the longest text that Parse reads, in bytes. A timestamp travels in an
	// MQTT user property, which could hold 64 KiB, and stores keep one for each key.
	maxText = 1024

	// maxNode leaves space for the two largest numbers and their colons, so that every
	// timestamp can be encoded, padded or not, and parsed again.
	maxNode = maxText - len("9223372036854775807:18446744073709551615:")
)

// A Timestamp is a reading of a hybrid logical clock. The zero value means "no
// timestamp".
//
// Timestamps are plain values: they may be copied, compared with ==, which agrees with
// [Timestamp.Compare], and used as map keys.
//
// A timestamp is well-formed if its Wall is not negative and its Node is valid UTF-8 of 1 to 983
// bytes without colons and control characters. [Parse] returns no other, except the zero value.
type Timestamp struct {
	// Wall is the wall clock, in milliseconds since the Unix epoch.
	Wall int64

	// Counter orders the timestamps with the same Wall.
	Counter uint64

	// Node is the id of the node that issued the timestamp. It orders timestamps that
	// are otherwise equal, so that the order is total. No other node should have it.
	Node string
}

// Parse reads the text form of a timestamp, "wall:counter:node" (docs/protocol.md §3), as
// in "1696374425000:0:CLIENT". The numbers may have any number of leading zeros, since
// deployed clients pad them.
//
// It is strict otherwise: three fields, numbers of decimal digits without sign or space,
// a Wall below 2^63, a Counter below 2^64, a node as in [Timestamp], and at most
// 1024 bytes. The error matches [ErrMalformed], says what is wrong, and quotes at most
// the beginning of text.
//
// Parse allocates only for errors: the Node of the result is a substring of text and
// keeps text in memory. Clone it if text is a small part of something large.
func Parse(text string) (Timestamp, error) {
	if len(text) > maxText {
		return Timestamp{}, malformed(text, "longer than "+strconv.Itoa(maxText)+" bytes")
	}
	wallText, rest, ok := strings.Cut(text, ":")
	if !ok {
		return Timestamp{}, malformed(text, "one field instead of three")
	}
	counterText, node, ok := strings.Cut(rest, ":")
	if !ok {
		return Timestamp{}, malformed(text, "two fields instead of three")
	}
	// 63 bits: Wall is an int64, and negative numbers do not exist on the wire.
	wall, err := strconv.ParseUint(wallText, 10, 63)
	if err != nil {
		return Timestamp{}, malformed(text, "wall clock "+numberFault(err))
	}
	counter, err := strconv.ParseUint(counterText, 10, 64)
	if err != nil {
		return Timestamp{}, malformed(text, "counter "+numberFault(err))
	}
	if fault := nodeFault(node); fault != "" {
		return Timestamp{}, malformed(text, "node "+fault)
	}
	return Timestamp{Wall: int64(wall), Counter: counter, Node: node}, nil
}

// malformed returns the error for text. It quotes only the beginning of text, which may
// come from an attacker and end up in a log.
func malformed(text, cause string) error {
	return fmt.Errorf("%w %.64q: %s", ErrMalformed, text, cause)
}

// numberFault describes an error of strconv.
func numberFault(err error) string {
	if errors.Is(err, strconv.ErrRange) {
		return "is out of range"
	}
	return "is not a decimal number"
}

// nodeFault says what is wrong with a node id, or returns the empty string.
//
// A colon would make a fourth field. The other rules are MQTT's for the string
// that carries the timestamp: UTF-8 [MQTT-1.5.4-1], no U+0000 [MQTT-1.5.4-2], and no
// other control characters, for which a receiver may close the connection.
func nodeFault(node string) string {
	switch {
	case node == "":
		return "is empty"
	case len(node) > maxNode:
		return "is longer than " + strconv.Itoa(maxNode) + " bytes"
	case strings.Contains(node, ":"):
		return "contains a colon"
	case !utf8.ValidString(node):
		return "is not valid UTF-8"
	case strings.ContainsFunc(node, unicode.IsControl):
		return "contains a control character"
	}
	return ""
}

// Append appends the text of [Timestamp.String] to dst and returns the extended slice. Like String it
// does not check t.
func (t Timestamp) Append(dst []byte) []byte {
	dst = strconv.AppendInt(dst, t.Wall, 10)
	dst = append(dst, ':')
	dst = strconv.AppendUint(dst, t.Counter, 10)
	dst = append(dst, ':')
	return append(dst, t.Node...)
}

// String returns the text form of t, without padding. It does not check t: for the zero value
// it returns "0:0:", which [Parse] refuses. [Timestamp.MarshalText] checks.
func (t Timestamp) String() string {
	var buffer [64]byte // for the usual node ids
	return string(t.Append(buffer[:0]))
}

// MarshalText implements [encoding.TextMarshaler]. The zero value becomes the empty
// text, every other value the text of [Timestamp.String]. For a timestamp that is not
// well-formed it returns an error that matches [ErrMalformed].
func (t Timestamp) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return []byte{}, nil
	}
	if t.Wall < 0 {
		return nil, malformed(t.String(), "wall clock is negative")
	}
	if fault := nodeFault(t.Node); fault != "" {
		return nil, malformed(t.String(), "node "+fault)
	}
	return t.Append(nil), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. It sets t to the zero value for
// the empty text, and to the result of [Parse] for any other. It does not keep text. On
// error, which matches [ErrMalformed], t is unchanged.
func (t *Timestamp) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = Timestamp{}
		return nil
	}
	// Parse refuses a text that is one byte too long: copying more is a waste.
	parsed, err := Parse(string(text[:min(len(text), maxText+1)]))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// Compare returns -1 if t is before u, +1 if t is after u, and 0 if they are equal. It
// compares the wall clocks first, then the counters, both as integers, and then the nodes
// byte by byte. Do not compare the text forms: as text, 10 comes before 9.
func (t Timestamp) Compare(u Timestamp) int {
	if order := cmp.Compare(t.Wall, u.Wall); order != 0 {
		return order
	}
	if order := cmp.Compare(t.Counter, u.Counter); order != 0 {
		return order
	}
	return cmp.Compare(t.Node, u.Node)
}

// IsZero reports whether t is the zero value, which means "no timestamp".
func (t Timestamp) IsZero() bool {
	return t == Timestamp{}
}
