package resp3

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The published requests in docs/protocol.md §2.1, and the notifications in section 5.
var arraySamples = []struct {
	name    string
	payload string
	want    []string
}{
	{"set", "*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", []string{"set", "SETKEY2", "VALUE5"}},
	{"get", "*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n", []string{"get", "SETKEY2"}},
	{"del", "*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n", []string{"del", "SETKEY2"}},
	{"vdel", "*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", []string{"vdel", "SETKEY2", "ABC"}},
	{"keynotify", "*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n", []string{"KEYNOTIFY", "SOMEKEY"}},
	{"notification of a set", "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n", []string{"NOTIFY", "SET", "VALUE", "abc"}},
	{"notification of a delete", "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n", []string{"NOTIFY", "DELETE"}},
	{"documented notification of a delete", "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n", []string{"NOTIFY", "DEL"}},
}

// The replies of docs/protocol.md §2.3, in the spellings of both dialects, and extremes.
var valueSamples = []struct {
	name    string
	payload string
	want    Value
}{
	{"set applied", "+OK\r\n", Value{Kind: Simple, Text: []byte("OK")}},
	{"condition failed", ":-1\r\n", Value{Kind: Integer, Integer: -1}},
	{"condition failed, documented", "-1\r\n", Value{Kind: Integer, Integer: -1}},
	{"get found", "$6\r\nVALUE5\r\n", Value{Kind: Bulk, Text: []byte("VALUE5")}},
	{"get missing", "$-1\r\n", Value{Kind: Null}},
	{"del of a key", ":1\r\n", Value{Kind: Integer, Integer: 1}},
	{"del of no key", ":0\r\n", Value{Kind: Integer}},
	{"error", "-ERR syntax error\r\n", Value{Kind: Error, Text: []byte("ERR syntax error")}},
	{"error without CR LF", "-ERR syntax error", Value{Kind: Error, Text: []byte("ERR syntax error")}},
	{"error with colon, documented", "-ERR: the key length is zero\r\n", Value{Kind: Error, Text: []byte("ERR: the key length is zero")}},
	{"error with colon and without CR LF", "-ERR: the key length is zero", Value{Kind: Error, Text: []byte("ERR: the key length is zero")}},
	{"an empty simple string", "+\r\n", Value{Kind: Simple, Text: []byte{}}},
	{"a simple string that looks like another type", "+:1\r\n", Value{Kind: Simple, Text: []byte(":1")}},
	{"an empty error", "-\r\n", Value{Kind: Error, Text: []byte{}}},
	{"an error that only begins like -1", "-1 is not a key\r\n", Value{Kind: Error, Text: []byte("1 is not a key")}},
	{"an error of another number", "-2\r\n", Value{Kind: Error, Text: []byte("2")}},
	{"the documented -1 without CR LF", "-1", Value{Kind: Integer, Integer: -1}},
	{"the largest integer", ":9223372036854775807\r\n", Value{Kind: Integer, Integer: math.MaxInt64}},
	{"the smallest integer", ":-9223372036854775808\r\n", Value{Kind: Integer, Integer: math.MinInt64}},
	{"an empty bulk string", "$0\r\n\r\n", Value{Kind: Bulk, Text: []byte{}}},
	{"a bulk string without its last CR LF, as published", "$4\r\n1234", Value{Kind: Bulk, Text: []byte("1234")}},
	{"an empty bulk string without its last CR LF", "$0\r\n", Value{Kind: Bulk, Text: []byte{}}},
	{"a bulk string of CR LF", "$2\r\n\r\n\r\n", Value{Kind: Bulk, Text: []byte("\r\n")}},
	{"a bulk string that looks like null", "$5\r\n$-1\r\n\r\n", Value{Kind: Bulk, Text: []byte("$-1\r\n")}},
}

func TestDecodeArrayReadsPublishedSamples(t *testing.T) {
	for _, test := range arraySamples {
		t.Run(test.name, func(t *testing.T) {
			got, err := DecodeArray(nil, []byte(test.payload))
			if err != nil || !slices.EqualFunc(got, test.want, func(a []byte, b string) bool { return string(a) == b }) {
				t.Errorf("DecodeArray(%q) = %q, %v; want %q", test.payload, got, err, test.want)
			}
			if encoded := AppendCommand(nil, test.want...); string(encoded) != test.payload {
				t.Errorf("AppendCommand(%q) = %q; want %q", test.want, encoded, test.payload)
			}
		})
	}
}

func TestDecodeValueReadsPublishedReplies(t *testing.T) {
	for _, test := range valueSamples {
		t.Run(test.name, func(t *testing.T) {
			got, err := DecodeValue([]byte(test.payload))
			if err != nil || got.Kind.String() != test.want.Kind.String() || !reflect.DeepEqual(got, test.want) {
				t.Errorf("DecodeValue(%q) = %v %+v, %v; want %+v", test.payload, got.Kind, got, err, test.want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, payload := range []string{
		"", "+OK\r\n", "$1\r\na\r\n", "GET k\r\n", "*", "*\r\n", "*-1\r\n", "*+1\r\n$1\r\na\r\n",
		"* 1\r\n$1\r\na\r\n", "*1 \r\n$1\r\na\r\n", "*01\r\n$1\r\na\r\n", "*00\r\n", "*1x\r\n$1\r\na\r\n",
		"*1\n$1\na\n", "*1\r$1\ra\r", "*1\r", "*1", "*1000000000\r\n", "*18446744073709551616\r\n",
		"*" + strings.Repeat("9", 100) + "\r\n", "*2\r\n$0\r\n\r\n12345", "*2\r\n$6\r\nabcdef\r\n",
		"*1\r\n$1\r\na\r\n$1\r\nb\r\n", "*0\r\n$1\r\na\r\n", "*1\r\n$1\r\na\r\n\x00",
		"*1\r\n$1\r\na\r\n*1\r\n$1\r\na\r\n", "*2\r\n$1\r\na\r\n$-1\r\n..", "*1\r\n*1\r\n$1\r\na\r\n",
		"*1\r\n:1\r\n......", "*1\r\n+OK\r\n.....", "*1\r\n$\r\na\r\n..", "*1\r\n$01\r\na\r\n",
		"*1\r\n$2\r\na\r\n", "*1\r\n$3\r\na\r\n", "*1\r\n$1000000000\r\na\r\n",
		"*1\r\n$18446744073709551615\r\na\r\n", "*1\r\n$1\r\nab\r\n", "*1\r\n$2\r\nab\n\n", "*1\r\n$2\r\nab\r",
	} {
		if got, err := DecodeArray(nil, []byte(payload)); !errors.Is(err, ErrMalformed) || got != nil {
			t.Errorf("DecodeArray(nil, %q) = %q, %v", payload, got, err)
		}
	}
	for _, payload := range []string{
		"", "OK\r\n", "_\r\n", "#t\r\n", "*1\r\n$1\r\na\r\n", "*0\r\n", "\r\n", "+OK", "+OK\n", "+OK\r",
		"+O\nK\r\n", "+OK\r\n+OK\r\n", "+", "-ERR\n", "-ERR\r", "-ERR a\r\nb\r\n", "-1\r", "-1\r\n-1\r\n", ":\r\n",
		":", ":-\r\n", ":-", ":--1\r\n", ":+1\r\n", ":01\r\n", ":-01\r\n", ":-0\r\n", ":1.5\r\n", ":1",
		":9223372036854775808\r\n", ":-9223372036854775809\r\n", ":18446744073709551617\r\n", ":1\r\n:1\r\n",
		"$\r\na\r\n", "$2\r\na\r\n", "$1\r\nab\r\n", "$1\r\na\r", "$1000000000\r\n", "$1\r\na\r\n.", "$-2\r\n",
		"$-0\r\n\r\n", "$-1", "$-1\r\n\r\n",
	} {
		if got, err := DecodeValue([]byte(payload)); !errors.Is(err, ErrMalformed) || !reflect.DeepEqual(got, Value{}) {
			t.Errorf("DecodeValue(%q) = %+v, %v", payload, got, err)
		}
	}
}

func TestDecodingDoesNotAllocate(t *testing.T) {
	request := []byte("*6\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$4\r\n2000\r\n")
	buffer := make([][]byte, 0, 6)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := DecodeArray(buffer[:0], request); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("DecodeArray allocates %v times where there is space; want 0", allocs)
	}
	for _, sample := range valueSamples {
		payload := []byte(sample.payload)
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := DecodeValue(payload); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("DecodeValue(%q) allocates %v times; want 0", payload, allocs)
		}
	}
}

// Invariant 44: nothing from the network allocates more than a constant times the
// bytes received. An element takes 6 bytes of payload and 24 of a slice, which makes
// 4; the race detector has slices.Grow allocate twice, and the allocator rounds up.
// The constant is for the error and its message.
func TestInvariant44HostileLengthsAllocateLittle(t *testing.T) {
	const factor, constant, runs = 9, 1024, 20
	filler := strings.Repeat("x", 60_000)
	tests := []struct {
		name    string
		payload string
	}{
		{"an array of a thousand million", "*1000000000\r\n"},
		{"an array of 2^63-1", "*9223372036854775807\r\n"},
		{"a bulk string of a thousand million", "*1\r\n$1000000000\r\n"},
		{"an array of as many as there are bytes", "*60000\r\n" + filler},
		{"an array of as many as could be, with none there", "*10000\r\n" + filler},
		{"an array of empty elements", "*10000\r\n" + strings.Repeat("$0\r\n\r\n", 10_000)},
		{"an array of empty elements, the last one cut off", "*10000\r\n" + strings.Repeat("$0\r\n\r\n", 9_999) + "$0\r\n\r."},
		{"a length of 60000 digits", "*" + strings.Repeat("9", 60_000)},
		{"a length of 60000 zeros", "*" + strings.Repeat("0", 60_000)},
		{"an integer of 60000 digits", ":" + strings.Repeat("9", 60_000)},
		{"a bulk string as a reply", "$1000000000\r\n"},
		{"a simple string of 60000 bytes", "+" + filler + "\r\n"},
		{"an error of 60000 bytes", "-" + filler},
		{"60000 nested arrays", strings.Repeat("*1\r\n", 15_000)},
		{"text", filler},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			payload := []byte(test.payload)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range runs {
				_, arrayErr := DecodeArray(nil, payload)
				_, valueErr := DecodeValue(payload)
				for _, err := range []error{arrayErr, valueErr} {
					if err != nil && len(err.Error()) > 128 {
						t.Fatalf("the message is %d bytes long", len(err.Error()))
					}
				}
			}
			runtime.ReadMemStats(&after)
			got := (after.TotalAlloc - before.TotalAlloc) / runs
			if limit := uint64(factor*len(payload) + constant); got > limit {
				t.Errorf("%d bytes of payload allocate %d bytes; want at most %d", len(payload), got, limit)
			}
		})
	}
}

func FuzzDecodeArray(f *testing.F) {
	for _, sample := range arraySamples {
		f.Add([]byte(sample.payload))
	}
	f.Add([]byte("*0\r\n"))
	f.Add([]byte("*1\r\n$0\r\n\r\n"))
	f.Add([]byte("*-1\r\n"))
	f.Add([]byte("*1\r\n$-1\r\n"))
	f.Add([]byte("*1\r\n*1\r\n$1\r\na\r\n"))
	f.Add([]byte("*1000000000\r\n"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		original := bytes.Clone(payload)
		elements, err := DecodeArray(nil, payload)
		if !bytes.Equal(payload, original) {
			t.Fatalf("DecodeArray(%q) changed its input to %q", original, payload)
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%q: %v", payload, err)
			}
			return
		}
		encoded := AppendArray(nil, len(elements))
		for _, element := range elements {
			encoded = AppendBulk(encoded, element)
		}
		if !bytes.Equal(encoded, payload) {
			t.Errorf("%q was decoded, and encoded to %q", payload, encoded)
		}
		checkAliases(t, payload, elements...)
	})
}

func FuzzDecodeValue(f *testing.F) {
	for _, sample := range valueSamples {
		f.Add([]byte(sample.payload))
	}
	f.Add([]byte(":-9223372036854775808\r\n"))
	f.Add([]byte(":9223372036854775808\r\n"))
	f.Add([]byte("$0\r\n\r\n"))
	f.Add([]byte("$1000000000\r\n"))
	f.Add([]byte("*1\r\n$1\r\na\r\n"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		original := bytes.Clone(payload)
		value, err := DecodeValue(payload)
		if !bytes.Equal(payload, original) {
			t.Fatalf("DecodeValue(%q) changed its input to %q", original, payload)
		}
		if err != nil {
			if value.Kind != 0 || value.Text != nil || value.Integer != 0 {
				t.Errorf("DecodeValue(%q) = %+v with an error", payload, value)
			}
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%q: %v", payload, err)
			}
			return
		}
		var encoded []byte
		switch value.Kind {
		case Simple:
			encoded = AppendSimple(nil, string(value.Text))
		case Error:
			encoded = AppendError(nil, string(value.Text))
		case Integer:
			encoded = AppendInteger(nil, value.Integer)
		case Bulk:
			encoded = AppendBulk(nil, value.Text)
		case Null:
			encoded = AppendNull(nil)
		default:
			t.Fatalf("DecodeValue(%q) has kind %v", payload, value.Kind)
		}
		again, err := DecodeValue(encoded)
		if err != nil || again.Kind != value.Kind || again.Integer != value.Integer || !bytes.Equal(again.Text, value.Text) {
			t.Errorf("%q was decoded to %+v, and after encoding to %+v, %v", payload, value, again, err)
		}
		tolerated := payload[0] == '-' && (value.Kind == Integer || !bytes.HasSuffix(payload, []byte("\r\n"))) ||
			value.Kind == Bulk && string(encoded) == string(payload)+"\r\n"
		if !tolerated && !bytes.Equal(encoded, payload) {
			t.Errorf("%q was decoded, and encoded to %q", payload, encoded)
		}
		if value.Text != nil {
			checkAliases(t, payload, value.Text)
		}
	})
}

// checkAliases checks that the results are slices of payload: they change with it, and their
// capacity is their length. It overwrites payload.
func checkAliases(t *testing.T, payload []byte, results ...[]byte) {
	t.Helper()
	before := make([][]byte, len(results))
	for i, result := range results {
		before[i] = bytes.Clone(result)
		if result == nil || cap(result) != len(result) {
			t.Errorf("result %d, %q, is nil or has space for %d bytes", i, result, cap(result))
		}
	}
	for i := range payload {
		payload[i] ^= 0xff
	}
	for i, result := range results {
		for j := range result {
			if result[j] != before[i][j]^0xff {
				t.Errorf("byte %d of result %d, %q, is not a byte of the payload", j, i, before[i])
				break
			}
		}
	}
}
