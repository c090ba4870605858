package terminal

import (
	"bytes"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestCleanTextHasNothingThatATerminalObeys(t *testing.T) {
	for text, want := range map[string]string{
		"press-7/active":    "press-7/active",
		"größe 図":           "größe 図",
		"\x1b[2J":           `\x1b[2J`,
		"a\nb\r\t":          `a\x0ab\x0d\x09`,
		"\xff\x80":          `\xff\x80`,
		`\x1b`:              `\x1b`,      // clean already
		"\u009b31m":         `\u009b31m`, // CSI in one character
		"a\u202eb":          `a\u202eb`,  // text from right to left
		"\U000e0001":        `\U000e0001`,
		"\ufffd of a peer":  "\ufffd of a peer",
		"":                  "",
		"\x7f and \x00 too": `\x7f and \x00 too`,
	} {
		if got := Clean(text); got != want {
			t.Errorf("Clean(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestABarIsAsWideAsAskedAndShowsEachShareAboveZero(t *testing.T) {
	for _, test := range []struct {
		share       float64
		ascii, utf8 string
	}{
		{0, "........", "        "},
		{0.001, "#.......", "▏       "},
		{0.5, "####....", "████    "},
		{0.55, "####....", "████▍   "},
		{1, "########", "████████"},
		{7, "########", "████████"},
		{-1, "........", "        "},
		{math.NaN(), "........", "        "},
		{math.Inf(1), "########", "████████"},
	} {
		if got := Bar(test.share, 8, Style{}); got != test.ascii {
			t.Errorf("share %v: %q, want %q", test.share, got, test.ascii)
		}
		if got := Bar(test.share, 8, Style{Unicode: true}); got != test.utf8 {
			t.Errorf("share %v: %q, want %q", test.share, got, test.utf8)
		}
	}
	if got := Bar(0.5, -3, Style{}); got != "" {
		t.Errorf("a bar without room: %q", got)
	}
}

func TestATableFitsTheWidth(t *testing.T) {
	table := Table{Head: []string{"NAME", "HOLDER", "LEFT"}, Rows: [][]Cell{
		{{Text: "press-7/active"}, {Text: "gateway-a with a name that goes on and on"}, {Text: "1.9s", Right: true}},
		{{Text: "図図図図図図図図"}, {Text: "b"}, {Text: "-", Right: true}},
	}}
	for _, width := range []int{20, 30, 40, 70} {
		for _, line := range table.Lines(width, Style{}) {
			if Width(line) > width {
				t.Errorf("width %d: %q has %d columns", width, line, Width(line))
			}
		}
	}
	want := []string{
		"NAME        HOLDER            LEFT",
		"press-7/a~  gateway-a with ~  1.9s",
		"図図図図~   b                    -",
	}
	if got := table.Lines(34, Style{}); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := strings.Join(table.Lines(0, Style{}), "\n"); !strings.Contains(got, "goes on and on") {
		t.Errorf("without a limit it is cut:\n%s", got)
	}
}

func TestAFileGetsNoColorNoProgressAndNoScreen(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var buffer bytes.Buffer
	for _, out := range []*Output{On(file), On(&buffer)} {
		if out.IsTerminal() || out.Style != (Style{}) || out.Width() != PlainWidth {
			t.Errorf("%+v, %d wide", out, out.Width())
		}
		progress := out.Progress()
		progress.Show("42%")
		progress.Clear()
		if err := out.Show(t.Context(), file, 1, nil); err != ErrNoTerminal {
			t.Errorf("a screen on a file: %v", err)
		}
	}
	if size, err := file.Stat(); err != nil || size.Size() != 0 || buffer.Len() != 0 {
		t.Errorf("it wrote %v, %q", size, buffer.String())
	}
}

func TestCleanLinesKeepTheirBreaksAndNothingElse(t *testing.T) {
	const text = "a\tb\r\n\x1b[2J\u009b\n"
	if got, want := CleanLines(text), "a\tb\\x0d\n\\x1b[2J\\u009b\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := CleanLines("a\n\tb"); got != "a\n\tb" {
		t.Errorf("%q", got)
	}
}
