// Package logs bounds what clients can make a server write to its log: [Name] is a name that a client
// chose, and [Text] a reason that may contain one. They are cut, and bytes that are not printable are
// escaped. Package loglimit bounds how often a line is repeated.
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

// LogValue implements slog.LogValuer.
func (n Name) LogValue() slog.Value { return slog.StringValue(n.String()) }

// String returns the name as a log shows it.
func (n Name) String() string { return shorten(string(n), MaxName) }

// Text is like Name, for an error or another reason. A log shows MaxText bytes.
type Text string

// LogValue implements slog.LogValuer.
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

// shorten returns at most limit bytes of a text, with the number of bytes cut. If it has control characters,
// line ends or bytes that are not UTF-8, it is escaped as in Go, so that a client cannot forge
// lines of a log. Quotes stay, since handlers escape them.
func shorten(text string, limit int) string {
	length, cut := len(text), ""
	if length > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) { // not inside a character
			limit--
		}
		text, cut = text[:limit], fmt.Sprintf("… (%d bytes)", length)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }) {
		quoted := strconv.Quote(text)
		text = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	}
	return text + cut
}
