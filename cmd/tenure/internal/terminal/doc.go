// Package terminal draws tables, bars, a progress line and a screen that is drawn
// again and again.
//
// What it draws fits the terminal. For a file or a pipe it is plain: no color, no escape sequence and
// no limit of the width.
//
// What a client, a store or a broker chose is printed through [Clean], or with %q, so that it can neither
// command the terminal nor forge a line.
//
//	out := terminal.On(os.Stdout)
//	for _, line := range table.Lines(out.Width(), out.Style) {
//		fmt.Fprintln(out, line)
//	}
package terminal
