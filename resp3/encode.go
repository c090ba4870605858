package resp3

import (
	"fmt"
	"strconv"
)

// AppendArray appends the header of an array of length elements, "*N\r\n". The
// elements follow, appended with [AppendBulk]. It panics if length is negative.
func AppendArray(dst []byte, length int) []byte {
	if length < 0 {
		panic(fmt.Sprintf("resp3: array of negative length %d", length))
	}
	dst = append(dst, '*')
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, "\r\n"...)
}

// AppendBulk appends data as a bulk string, "$N\r\n<data>\r\n". Data may be empty and may
// have any bytes. A nil slice becomes an empty bulk string; for null use [AppendNull].
func AppendBulk[T ~string | ~[]byte](dst []byte, data T) []byte {
	dst = append(dst, '$')
	dst = strconv.AppendInt(dst, int64(len(data)), 10)
	dst = append(dst, "\r\n"...)
	dst = append(dst, data...)
	return append(dst, "\r\n"...)
}

// AppendNull appends null, "$-1\r\n": the reply to a GET of a key that is missing.
func AppendNull(dst []byte) []byte {
	return append(dst, "$-1\r\n"...)
}

// AppendSimple appends text as a simple string, "+text\r\n". Each CR and LF in text becomes a
// space, because it would end the line.
func AppendSimple(dst []byte, text string) []byte {
	return appendLine(dst, '+', text)
}

// AppendError appends text as an error, "-text\r\n". The text begins with a code, as in
// "ERR syntax error". Each CR and LF in text becomes a space.
//
// Do not append the text "1": "-1\r\n" is the documented spelling of the integer -1, and
// [DecodeValue] returns an Integer for it.
func AppendError(dst []byte, text string) []byte {
	return appendLine(dst, '-', text)
}

// appendLine appends text as the single line of a value of the given type.
func appendLine(dst []byte, kind byte, text string) []byte {
	dst = append(dst, kind)
	start := len(dst)
	dst = append(dst, text...)
	for i, c := range dst[start:] {
		if c == '\r' || c == '\n' {
			dst[start+i] = ' '
		}
	}
	return append(dst, "\r\n"...)
}

// AppendInteger appends n as an integer, ":n\r\n".
func AppendInteger(dst []byte, n int64) []byte {
	dst = append(dst, ':')
	dst = strconv.AppendInt(dst, n, 10)
	return append(dst, "\r\n"...)
}

// AppendCommand appends the arguments as an array of bulk strings: a whole request with the
// verb first. If some arguments are byte slices, use [AppendArray] and [AppendBulk].
func AppendCommand(dst []byte, arguments ...string) []byte {
	dst = AppendArray(dst, len(arguments))
	for _, argument := range arguments {
		dst = AppendBulk(dst, argument)
	}
	return dst
}
