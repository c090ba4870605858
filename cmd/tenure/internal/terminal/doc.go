// Package terminal draws tables, bars, histograms, a progress line and a screen that is drawn
// again and again.
//
// What it draws fits the terminal. For a file or a pipe it is plain: no color, no escape sequence and
// no limit of the width. [Clean] makes text of other machines harmless: it shows control characters
// and does not send them.
//
//	out := terminal.On(os.Stdout)
//	for _, line := range terminal.Histogram(buckets, out.Width(), out.Style) {
//		fmt.Fprintln(out, line)
//	}
package terminal
