package terminal

import (
	"cmp"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/term"
)

// PlainWidth is the width of what is drawn for a file or a pipe, in columns.
const PlainWidth = 100

// minWidth is the least width for which anything is drawn: a terminal may claim to have none.
const minWidth = 20

// Output is where a command writes. Its methods are safe for concurrent use if its writer is.
type Output struct {
	io.Writer
	// Style says what the output can show.
	Style Style

	descriptor int // of a terminal
	isTerminal bool
}

// Style is what an output can show. The zero value is for files: ASCII without color.
type Style struct {
	// Color allows colors.
	Color bool
	// Unicode allows block characters in bars.
	Unicode bool
}

// On returns the output for a writer. It is a terminal if w is an *os.File of one, and TERM is not
// "dumb". With NO_COLOR (https://no-color.org) it has no color.
func On(w io.Writer) *Output {
	out := &Output{Writer: w}
	if os.Getenv("TERM") == "dumb" || !IsTerminal(w) {
		return out
	}
	out.descriptor, out.isTerminal = int(w.(*os.File).Fd()), true
	out.Style = Style{Color: os.Getenv("NO_COLOR") == "", Unicode: hasUTF8()}
	return out
}

// IsTerminal reports whether a stream is a terminal, of whatever kind: a person reads or types there.
func IsTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// hasUTF8 reports whether the terminal's text is in UTF-8, by the variables of the locale. Windows has
// no such variables, and its terminals take UTF-8.
func hasUTF8() bool {
	if runtime.GOOS == "windows" {
		return true
	}
	locale := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")
}

// IsTerminal reports whether the output is a terminal.
func (o *Output) IsTerminal() bool { return o.isTerminal }

// Width returns the present width of the terminal in columns, or PlainWidth.
func (o *Output) Width() int {
	width, _ := o.size()
	return width
}

// size returns the present columns and rows. A terminal can be resized at any time, so it asks each
// time. For a file the number of rows has no limit: 0.
func (o *Output) size() (columns, rows int) {
	if !o.isTerminal {
		return PlainWidth, 0
	}
	columns, rows, err := term.GetSize(o.descriptor)
	if err != nil || columns == 0 {
		return 80, 24
	}
	return max(columns, minWidth), max(rows, 2)
}
