package terminal

import "io"

// Progress is one line of a terminal that is written again and again. On a file it writes nothing. It
// is for one goroutine.
type Progress struct {
	out   *Output
	shown bool
}

// Progress returns a progress line on this output.
func (o *Output) Progress() *Progress { return &Progress{out: o} }

// Show replaces the line. The text must be clean.
func (p *Progress) Show(text string) {
	if !p.out.isTerminal {
		return
	}
	p.shown = true
	// The last column stays free: some terminals begin a new line after it.
	_, _ = io.WriteString(p.out, "\r"+Cut(text, p.out.Width()-1)+"\x1b[K")
}

// Clear removes the line, so that other output can follow.
func (p *Progress) Clear() {
	if p.shown {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
	}
	p.shown = false
}
