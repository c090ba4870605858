package shown

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable returns a text that a client chose as the page has it. Characters that are not
// printable, bytes that are not UTF-8 and backslashes are escaped as in Go, so two texts never look like
// one. A text of more than Max bytes is cut as by Cut. What has more bytes when it is escaped is cut
// in the same way, with another mark before the hash.
func Printable(text string) string {
	if len(text) > Max {
		text = Cut(text)
	}
	if isPlain(text) && !looksCut(text, printableMark) {
		return text
	}
	var escaped strings.Builder
	for rest := text; len(rest) > 0; {
		r, size := utf8.DecodeRuneInString(rest)
		if isPlainRune(r, size) {
			escaped.WriteString(rest[:size])
		} else {
			quoted := strconv.Quote(rest[:size])
			escaped.WriteString(quoted[1 : len(quoted)-1])
		}
		rest = rest[size:]
	}
	if escaped.Len() <= Max && !looksCut(escaped.String(), printableMark) {
		return escaped.String()
	}
	return cut(escaped.String(), printableMark)
}

func isPlain(text string) bool {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if !isPlainRune(r, size) {
			return false
		}
		i += size
	}
	return true
}

// isPlainRune reports whether a character that is size bytes long is shown as it is.
func isPlainRune(r rune, size int) bool {
	return (r != utf8.RuneError || size > 1) && r != '\\' && strconv.IsPrint(r)
}
