// Package output writes the reports of commands as JSON, in one convention for all of them:
//
//   - keys are in camelCase;
//   - a duration is a number of milliseconds, which may have a fraction, and its key ends with
//     Millis: see [Millis];
//   - a moment is a text as RFC 3339 has it;
//   - what is not UTF-8 is in base64, and its key ends with Base64;
//   - nothing in it is a control character of a terminal: see [Printable].
package output

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Millis is a duration that is a number of milliseconds in JSON, exact to the nanosecond.
type Millis struct{ time.Duration }

// MarshalJSON returns the milliseconds, such as 1500 or 0.25.
func (m Millis) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(m.Duration)/float64(time.Millisecond), 'f', -1, 64), nil
}

// UnmarshalJSON reads a number of milliseconds.
func (m *Millis) UnmarshalJSON(text []byte) error {
	var milliseconds float64
	if err := json.Unmarshal(text, &milliseconds); err != nil {
		return err
	}
	m.Duration = time.Duration(math.Round(milliseconds * float64(time.Millisecond)))
	return nil
}

// Text returns content as text, or as bytes where it is not UTF-8: for two fields of a report of which the
// second ends with Base64, and an absent one is left out.
func Text[T ~string | ~[]byte](content T) (text *string, other []byte) {
	if !utf8.ValidString(string(content)) {
		return nil, []byte(content)
	}
	valid := string(content)
	return &valid, nil
}

// JSON writes a report as one line.
func JSON(w io.Writer, report any) error {
	encoder := json.NewEncoder(Printable(w))
	encoder.SetEscapeHTML(false)
	return encoder.Encode(report)
}

// Printable returns a writer that passes JSON on to w, and writes the characters that a terminal
// obeys or does not show as \uNNNN: a key, a value or the name of a holder may have any, and package
// json escapes only those below U+0020. The JSON means the same. It is for one goroutine. A text that
// ends within a character is passed on without that.
func Printable(w io.Writer) io.Writer { return &printable{w: w} }

type printable struct {
	w    io.Writer
	rest []byte // the beginning of a character
}

// Write implements io.Writer.
func (p *printable) Write(text []byte) (int, error) {
	pending := append(p.rest, text...)
	line := make([]byte, 0, len(pending))
	for len(pending) > 0 && utf8.FullRune(pending) {
		r, size := utf8.DecodeRune(pending)
		switch {
		case r < 0x7f || unicode.IsPrint(r): // JSON has a line break at its end, and between fields perhaps
			line = append(line, pending[:size]...)
		case r <= 0xffff:
			line = appendEscape(line, r)
		default:
			high, low := utf16.EncodeRune(r)
			line = appendEscape(appendEscape(line, high), low)
		}
		pending = pending[size:]
	}
	p.rest = append([]byte(nil), pending...)
	if _, err := p.w.Write(line); err != nil {
		return 0, err
	}
	return len(text), nil
}

// appendEscape appends a unit of UTF-16.
func appendEscape(to []byte, unit rune) []byte {
	const digits = "0123456789abcdef"
	return append(to, '\\', 'u', digits[unit>>12&15], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
}
