package output

import (
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// IsTerminal reports whether a stream is a terminal: a person reads or types there.
func IsTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// Clean returns text with each byte of what a terminal would not show as it is as \xNN: a key or a holder's name
// may have any bytes, and a terminal obeys some of them. A backslash stays, so clean text does not change. The text
// is one line.
func Clean(text string) string { return clean(text, "") }

// CleanLines is Clean for text of several lines: line breaks and tabs stay.
func CleanLines(text string) string { return clean(text, "\n\t") }

// clean is Clean with characters that stay.
func clean(text, stay string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		shown := r != utf8.RuneError || size > 1
		if shown && (unicode.IsPrint(r) || strings.ContainsRune(stay, r)) {
			b.WriteString(text[:size])
		} else {
			for _, unshown := range []byte(text[:size]) {
				fmt.Fprintf(&b, `\x%02x`, unshown)
			}
		}
		text = text[size:]
	}
	return b.String()
}
