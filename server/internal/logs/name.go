package logs

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxName is how many bytes of a Name a log shows.
	MaxName = 64
	// MaxText is how many bytes of a Text a log shows.
	MaxText = 512
)

// Name is a name that a client chose: a client id, a user, a key, a topic. A log shows at most
// MaxName of its bytes. Use it as the value of an attribute: it is formatted only if the line
// is logged, and conversions from string are free.
type Name string

var _ slog.LogValuer = Name("")

// LogValue returns String.
func (n Name) LogValue() slog.Value { return slog.StringValue(n.String()) }

// String returns the name as a log shows it.
func (n Name) String() string { return shorten(string(n), MaxName) }

// Text is like Name, for an error or another reason. A log shows MaxText bytes.
type Text string

var _ slog.LogValuer = Text("")

// LogValue returns String.
func (t Text) LogValue() slog.Value { return slog.StringValue(t.String()) }

// String returns the text as a log shows it.
func (t Text) String() string { return shorten(string(t), MaxText) }

// Error returns the Text of an error, or an empty one for nil.
func Error(err error) Text {
	if err == nil {
		return ""
	}
	return Text(err.Error())
}

// shorten returns at most limit bytes of a text, with the number of bytes cut. Control characters,
// line ends and bytes that are not UTF-8 are escaped as in Go, so that a client cannot forge
// lines of a log. Quotes stay, since handlers escape them.
func shorten(text string, limit int) string {
	whole := text
	if len(text) > limit {
		cut := limit
		for i := 1; i < utf8.UTFMax && cut-i >= 0; i++ { // not inside a character
			if utf8.RuneStart(text[cut]) {
				break
			}
			cut--
		}
		text = text[:cut]
	}
	if !isPlain(text) {
		text = escape(text)
	}
	if len(whole) > limit {
		return fmt.Sprintf("%s… (%d bytes)", text, len(whole))
	}
	return text
}

func isPlain(text string) bool {
	for _, r := range text {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return false
		}
	}
	return true
}

func escape(text string) string {
	var escaped strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if (r != utf8.RuneError || size > 1) && strconv.IsPrint(r) {
			escaped.WriteString(text[:size])
		} else {
			quoted := strconv.Quote(text[:size])
			escaped.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return escaped.String()
}
