package hlc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrMalformed is wrapped by the error of [Parse], and of the text methods of
// [Timestamp], when a text or a value is not a well-formed timestamp.
var ErrMalformed = errors.New("hlc: malformed timestamp")

const (
	// maxText bounds what Parse reads. A timestamp travels in an MQTT user
	// property, which could hold 64 KiB, and stores keep one for each key.
	maxText = 1024

	// maxNode leaves room for the two largest numbers and their colons, so
	// that whatever was parsed can be encoded, padded or not, and parsed again.
	maxNode = maxText - len("9223372036854775807:18446744073709551615:")

	// The widths to which deployed clients pad the numbers (docs/protocol.md §3.1).
	paddedWall    = 15
	paddedCounter = 5
)

// A Timestamp is a reading of a hybrid logical clock. The zero value means "no
// timestamp"; see [Timestamp.IsZero].
//
// Timestamps are plain values: they may be copied and compared with ==, which
// agrees with [Timestamp.Compare], and used as map keys.
//
// A well-formed timestamp has a Wall of zero or more and a Node that [NewClock]
// would accept. [Parse] and [Clock] yield no others, apart from the zero value.
type Timestamp struct {
	// Wall is the wall clock, in milliseconds since the Unix epoch.
	Wall int64

	// Counter orders the timestamps that share a Wall.
	Counter uint64

	// Node is the id of the node that issued the timestamp. It decides the order
	// of timestamps that are otherwise equal, and so makes the order total.
	Node string
}

// Parse reads the text form of a timestamp, "wall:counter:node" (docs/protocol.md
// §3.1), as in "1696374425000:0:CLIENT". The numbers may have any number of
// leading zeros, since deployed clients pad them.
//
// It is strict otherwise: exactly three fields; numbers of decimal digits alone,
// without sign or space, that fit their fields; a node as [NewClock] demands it;
// 1024 bytes altogether. An error wraps [ErrMalformed], names the cause, and
// quotes no more than the beginning of text.
//
// Parse does not allocate when it succeeds: the Node of the result is a substring
// of text and keeps text in memory. Clone it where text is a small part of
// something large.
func Parse(text string) (Timestamp, error) {
	if len(text) > maxText {
		return Timestamp{}, malformed(text, "longer than "+strconv.Itoa(maxText)+" bytes")
	}
	wallText, rest, ok := strings.Cut(text, ":")
	if !ok {
		return Timestamp{}, malformed(text, "one field where three are wanted")
	}
	counterText, node, ok := strings.Cut(rest, ":")
	if !ok {
		return Timestamp{}, malformed(text, "two fields where three are wanted")
	}
	// A wall has 63 bits: negative ones do not exist on the wire.
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

// malformed returns the error for text. It quotes only the beginning, since the
// text is a stranger's and the error may end up in a log.
func malformed(text, cause string) error {
	return fmt.Errorf("%w %.64q: %s", ErrMalformed, text, cause)
}

// numberFault says in words what strconv has against a number.
func numberFault(err error) string {
	if errors.Is(err, strconv.ErrRange) {
		return "is out of range"
	}
	return "is not a decimal number"
}

// nodeFault says what is wrong with a node id, or returns the empty string.
//
// A colon would make a fourth field. The rest is what MQTT asks of the string
// that carries the timestamp: UTF-8 [MQTT-1.5.4-1], no U+0000 [MQTT-1.5.4-2], and
// no other control characters, on which a receiver may hang up.
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

// Append appends the text form of t, without padding, to dst and returns the
// extended slice. This is the form that Tenure sends.
//
// It appends any value as it is, also one that [Parse] would refuse: the zero
// value becomes "0:0:". [Timestamp.MarshalText] is the strict form.
func (t Timestamp) Append(dst []byte) []byte {
	dst = strconv.AppendInt(dst, t.Wall, 10)
	dst = append(dst, ':')
	dst = strconv.AppendUint(dst, t.Counter, 10)
	dst = append(dst, ':')
	return append(dst, t.Node...)
}

// AppendPadded is like [Timestamp.Append] but pads the wall clock with zeros to
// 15 digits and the counter to 5, as deployed clients do:
// "001696374425000:00000:CLIENT". Larger numbers are written in full.
func (t Timestamp) AppendPadded(dst []byte) []byte {
	var digits [20]byte // as many as the longest int64 or uint64 takes
	dst = appendPadding(dst, strconv.AppendInt(digits[:0], t.Wall, 10), paddedWall)
	dst = append(dst, ':')
	dst = appendPadding(dst, strconv.AppendUint(digits[:0], t.Counter, 10), paddedCounter)
	dst = append(dst, ':')
	return append(dst, t.Node...)
}

// appendPadding appends digits, with zeros before them up to width.
func appendPadding(dst, digits []byte, width int) []byte {
	for range width - len(digits) {
		dst = append(dst, '0')
	}
	return append(dst, digits...)
}

// String returns the text form of t, as [Timestamp.Append] writes it.
func (t Timestamp) String() string {
	var room [64]byte // for the usual node ids
	return string(t.Append(room[:0]))
}

// MarshalText implements [encoding.TextMarshaler]. The zero value becomes the
// empty text, every other the form of [Timestamp.Append]. A timestamp that
// [Parse] would refuse is an error that wraps [ErrMalformed].
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

// UnmarshalText implements [encoding.TextUnmarshaler]. The empty text sets t to
// the zero value; every other is read as by [Parse]. It does not keep text. On
// error t is unchanged.
func (t *Timestamp) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = Timestamp{}
		return nil
	}
	// One byte too many is enough for Parse to refuse; do not copy more.
	parsed, err := Parse(string(text[:min(len(text), maxText+1)]))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// Compare returns -1 if t is before u, +1 if it is after u, and 0 if they are
// equal. Wall clocks are compared first and then counters, both as integers, and
// last the bytes of the nodes. The text forms have another order, in which 10
// comes before 9: never compare those.
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

// ErrCounterOverflow is wrapped by the error of [Tick], [Merge] and the methods of
// [Clock] when a counter would overflow, or when a remote counter is so large that
// it might soon; see [MaxRemoteCounter]. It passes when physical time moves beyond
// the wall clock of the last timestamp.
var ErrCounterOverflow = errors.New("hlc: counter overflow")

// MaxRemoteCounter is where the remote counters begin that [Merge] does not adopt.
// The limit is this package's own; neither the paper nor the protocol has one.
//
// Without it one peer could send the current millisecond, or one within the skew
// limit, with a counter of 2^64-2. The merge would succeed and the next event of
// the receiver would fail, and so would every other until its physical clock had
// passed that millisecond. With it, a receiver that adopted a counter has 2^63-1
// events left, more than any node can produce in the time.
//
// What such a receiver issues then, for as long, has counters above the limit, and
// its own peers do not adopt those. They lose nothing but the update of a clock, so
// a refused merge is no reason to drop the message that brought the timestamp.
const MaxRemoteCounter uint64 = 1 << 63

// Tick returns the timestamp of the next local event, or of a message to send
// (HLC section 3). The last timestamp is the one of the event before, or has only
// a Node if there was none; wall is the physical clock in milliseconds since the
// Unix epoch, where a negative one counts as 0.
//
// The result carries the Node of last and is greater than last, also where wall is
// behind it. On error, which wraps [ErrCounterOverflow], Tick returns last.
func Tick(last Timestamp, wall int64) (Timestamp, error) {
	wall = max(last.Wall, wall, 0)
	if wall > last.Wall {
		return Timestamp{Wall: wall, Node: last.Node}, nil
	}
	return increment(last, wall, last.Counter)
}

// Merge returns the timestamp of the receipt of remote (HLC section 3). The other
// parameters are those of [Tick]. The zero timestamp may stand for remote, which
// makes Merge the same as Tick.
//
// The result carries the Node of last and is greater than both last and remote. On
// error, which wraps [ErrCounterOverflow], Merge returns last.
//
// Merge adopts the counter of remote if remote's wall clock is the largest of the
// three and last has not reached that counter in the same millisecond. Only then
// is a counter of [MaxRemoteCounter] or more an error; otherwise it has no effect
// on the result, and an odd timestamp from the past harms nobody.
//
// Merge adopts any wall clock. [Clock.Update] adds the limit on that.
func Merge(last, remote Timestamp, wall int64) (Timestamp, error) {
	wall = max(last.Wall, remote.Wall, wall, 0)
	switch {
	case remote.Wall == wall && (last.Wall < wall || last.Counter < remote.Counter):
		if remote.Counter >= MaxRemoteCounter {
			return last, fmt.Errorf("%w: node %.64q sent counter %d, the limit is %d",
				ErrCounterOverflow, remote.Node, remote.Counter, MaxRemoteCounter)
		}
		return increment(last, wall, remote.Counter)
	case last.Wall == wall:
		return increment(last, wall, last.Counter)
	}
	return Timestamp{Wall: wall, Node: last.Node}, nil
}

// increment returns the timestamp of last's node that follows counter at wall.
func increment(last Timestamp, wall int64, counter uint64) (Timestamp, error) {
	if counter == math.MaxUint64 {
		return last, fmt.Errorf("%w: no counter is left at wall clock %d", ErrCounterOverflow, wall)
	}
	return Timestamp{Wall: wall, Counter: counter + 1, Node: last.Node}, nil
}
