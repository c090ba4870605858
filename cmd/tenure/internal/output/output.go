// Package output writes the reports of commands as JSON, in one convention for all of them:
//
//   - keys are in camelCase;
//   - a duration is a number of milliseconds, and its key ends with Millis;
//   - a moment is a text as RFC 3339 has it;
//   - what is not UTF-8 is in base64, and its key ends with Base64;
//   - nothing in it is a control character of a terminal: see [Printable].
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

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
func Printable(w io.Writer) io.Writer { return &printable{to: w} }

type printable struct {
	to   io.Writer
	rest []byte // the beginning of a character
}

// Write implements io.Writer.
func (p *printable) Write(text []byte) (int, error) {
	pending := append(p.rest, text...)
	line := make([]byte, 0, len(pending))
	for utf8.FullRune(pending) {
		r, size := utf8.DecodeRune(pending)
		pending = pending[size:]
		if r < 0x7f || unicode.IsPrint(r) { // JSON has a line break at its end, and between fields perhaps
			line = utf8.AppendRune(line, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			line = fmt.Appendf(line, `\u%04x`, unit)
		}
	}
	p.rest = bytes.Clone(pending)
	if _, err := p.to.Write(line); err != nil {
		return 0, err
	}
	return len(text), nil
}
