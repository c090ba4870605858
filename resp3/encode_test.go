package resp3

import (
	"math"
	"testing"
)

func TestAppend(t *testing.T) {
	type name string
	type data []byte
	tests := []struct {
		name string
		got  []byte
		want string
	}{
		{"the header of an array", AppendArray(nil, 3), "*3\r\n"},
		{"the header of an empty array", AppendArray(nil, 0), "*0\r\n"},
		{"a bulk string from a string", AppendBulk(nil, "SETKEY2"), "$7\r\nSETKEY2\r\n"},
		{"a bulk string from bytes", AppendBulk(nil, []byte("SETKEY2")), "$7\r\nSETKEY2\r\n"},
		{"a bulk string from types of one's own", AppendBulk(AppendBulk(nil, name("a")), data("b")), "$1\r\na\r\n$1\r\nb\r\n"},
		{"a bulk string that holds CR LF", AppendBulk(nil, "a\r\nb\x00"), "$5\r\na\r\nb\x00\r\n"},
		{"a bulk string counted in bytes", AppendBulk(nil, "größe"), "$7\r\ngröße\r\n"},
		{"an empty bulk string", AppendBulk(nil, ""), "$0\r\n\r\n"},
		{"a bulk string from nil", AppendBulk(nil, []byte(nil)), "$0\r\n\r\n"},
		{"null", AppendNull(nil), "$-1\r\n"},
		{"a simple string", AppendSimple(nil, "OK"), "+OK\r\n"},
		{"an empty simple string", AppendSimple(nil, ""), "+\r\n"},
		{"a simple string with line ends", AppendSimple(nil, "a\r\nb\nc\r"), "+a  b c \r\n"},
		{"an error", AppendError(nil, "ERR syntax error"), "-ERR syntax error\r\n"},
		{"an error with line ends", AppendError(nil, "ERR a\r\n+OK"), "-ERR a  +OK\r\n"},
		{"the documented spelling of -1", AppendError(nil, "1"), "-1\r\n"},
		{"an integer", AppendInteger(nil, 1), ":1\r\n"},
		{"zero", AppendInteger(nil, 0), ":0\r\n"},
		{"a negative integer", AppendInteger(nil, -1), ":-1\r\n"},
		{"the smallest integer", AppendInteger(nil, math.MinInt64), ":-9223372036854775808\r\n"},
		{"a command", AppendCommand(nil, "SET", "k", "v", "NEX"), "*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$3\r\nNEX\r\n"},
		{"a command without arguments", AppendCommand(nil), "*0\r\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if string(test.got) != test.want {
				t.Errorf("got %q; want %q", test.got, test.want)
			}
		})
	}
}
