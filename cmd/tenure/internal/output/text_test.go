package output

import "testing"

func TestCleanTextHasNothingThatATerminalObeys(t *testing.T) {
	for text, want := range map[string]string{
		"press-7/active":    "press-7/active",
		"größe 図":           "größe 図",
		"\x1b[2J":           `\x1b[2J`,
		"a\nb\r\t":          `a\x0ab\x0d\x09`,
		"\xff\x80":          `\xff\x80`,
		`\x1b`:              `\x1b`,           // clean already
		"\u009b31m":         `\xc2\x9b31m`,    // CSI in one character
		"a\u202eb":          `a\xe2\x80\xaeb`, // text from right to left
		"\ufffd of a peer":  "\ufffd of a peer",
		"":                  "",
		"\x7f and \x00 too": `\x7f and \x00 too`,
	} {
		if got := Clean(text); got != want {
			t.Errorf("Clean(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestCleanLinesKeepTheirBreaksAndNothingElse(t *testing.T) {
	if got, want := CleanLines("a\tb\r\n\x1b[2J\u009b\n"), "a\tb\\x0d\n\\x1b[2J\\xc2\\x9b\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
