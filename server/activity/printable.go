package activity

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable returns a text that clients choose as a State has it. Characters that are not printable,
// bytes that are not UTF-8 and backslashes are escaped as in Go, so two texts never look like one. A
// result of more than MaxKey bytes is cut, and its hash is added, as CutKey does it.
func Printable(text string) string {
	if isPlain(text) {
		return cutPrintable(text)
	}
	var escaped strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if isPlainRune(r, size) {
			escaped.WriteString(text[:size])
		} else {
			quoted := strconv.Quote(text[:size])
			escaped.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return cutPrintable(escaped.String())
}

// cutPrintable is CutKey for a text that is valid UTF-8, and so is the result.
func cutPrintable(text string) string {
	cut := CutKey(text)
	if len(cut) == len(text) {
		return cut
	}
	begin, end := cut[:cutAt], cut[cutAt:]
	for {
		if r, size := utf8.DecodeLastRuneInString(begin); r != utf8.RuneError || size > 1 {
			return begin + end
		}
		begin = begin[:len(begin)-1] // a part of a character
	}
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
