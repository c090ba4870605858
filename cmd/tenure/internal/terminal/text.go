package terminal

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// widths counts columns. Characters whose width depends on the font count as narrow, in each locale,
// so that a table is the same everywhere.
var widths = &runewidth.Condition{}

// Width returns how many columns text takes. The text must be clean.
func Width(text string) int { return widths.StringWidth(text) }

// Clean returns text with each byte that is not printable as \xNN, and each other character that a
// terminal would not show as it is, as \uNNNN: a key or a holder's name may have any bytes, and a
// terminal obeys some of them. A backslash stays, so clean text does not change. The text is one line.
func Clean(text string) string { return clean(text, "") }

// CleanLines is Clean for text of several lines: line breaks and tabs stay.
func CleanLines(text string) string { return clean(text, "\n\t") }

// clean is Clean with characters that stay.
func clean(text, stay string) string {
	harmless := true
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) && !strings.ContainsRune(stay, r) {
			harmless = false
			break
		}
	}
	if harmless {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case strings.ContainsRune(stay, r):
			b.WriteRune(r)
		case r == utf8.RuneError && size == 1, r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case !unicode.IsPrint(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

// Cut returns the beginning of a text that takes at most so many columns. A cut text ends with "~".
func Cut(text string, columns int) string { return widths.Truncate(text, max(columns, 0), "~") }

// fit cuts text to a number of columns and fills it up to them. A cut text ends with "~".
func fit(text string, columns int) string {
	if Width(text) > columns {
		text = Cut(text, columns)
	}
	return text + strings.Repeat(" ", max(0, columns-Width(text)))
}

// Color is a color of text.
type Color string

// Colors that are readable on light and on dark terminals.
const (
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
	Bold   Color = "1"
)

// Paint returns text in a color, or as it is if the style has none.
func (s Style) Paint(color Color, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + string(color) + "m" + text + "\x1b[0m"
}
