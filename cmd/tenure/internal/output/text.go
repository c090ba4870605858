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

// Clean returns text with each byte that is not printable as \xNN, and each other character that a
// terminal would not show as it is, as \uNNNN: a key or a holder's name may have any bytes, and a
// terminal obeys some of them. A backslash stays, so clean text does not change. The text is one line.
func Clean(text string) string { return clean(text, "") }

// CleanLines is Clean for text of several lines: line breaks and tabs stay.
func CleanLines(text string) string { return clean(text, "\n\t") }

// clean is Clean with characters that stay.
func clean(text, stay string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1, r < utf8.RuneSelf && !unicode.IsPrint(r) && !strings.ContainsRune(stay, r):
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case unicode.IsPrint(r), strings.ContainsRune(stay, r):
			b.WriteString(text[:size])
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		text = text[size:]
	}
	return b.String()
}
