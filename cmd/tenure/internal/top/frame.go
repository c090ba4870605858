package top

import (
	"fmt"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
)

const (
	barWidth = 20
	// lowShare is the share of its TTL below which a lease is shown in yellow: a renewal is due long
	// before.
	lowShare = 1.0 / 3
)

// heads are the columns of the table. Where they do not all fit with the least width at which they
// are of use, those with the highest number are left out first.
var heads = []struct {
	text         string
	least, order int
}{
	{"NAME", 12, 0}, {"HOLDER", 10, 1}, {"HELD FOR", 8, 3}, {"LEFT", 7, 2}, {"", 8, 5}, {"WAITING", 7, 4},
}

// fitting returns which of the heads fit into a number of columns: the name always does.
func fitting(columns int) (indexes []int) {
	const gap = 2
	for last := len(heads) - 1; last >= 0; last-- {
		indexes = indexes[:0]
		width := -gap
		for i, head := range heads {
			if head.order <= last {
				indexes = append(indexes, i)
				width += head.least + gap
			}
		}
		if width <= columns {
			break
		}
	}
	return indexes
}

// Lines draws a snapshot, of at most columns and, if rows is not 0, rows.
func (s Snapshot) Lines(columns, rows int, style terminal.Style) []string {
	held := 0
	for _, l := range s.Leases {
		if l.Held {
			held++
		}
	}
	head := fmt.Sprintf("%s  %d of %d leases held", s.At.Format(time.TimeOnly), held, len(s.Leases)+s.Hidden)
	if s.Title != "" {
		head += "  " + terminal.Clean(s.Title)
	}
	lines := []string{terminal.Cut(head, columns)}
	if s.Problem != "" {
		lines = append(lines, style.Paint(terminal.Red, terminal.Cut(terminal.Clean(s.Problem), columns)))
	}
	columnsOf, table := fitting(columns), terminal.Table{}
	for _, i := range columnsOf {
		table.Head = append(table.Head, heads[i].text)
	}
	shown := s.Leases
	if room := rows - len(lines) - 2; rows > 0 && len(shown) > room { // the head of the table, and the last line
		shown = shown[:max(room, 0)]
	}
	for _, l := range shown {
		all, row := l.cells(style), make([]terminal.Cell, 0, len(columnsOf))
		for _, i := range columnsOf {
			row = append(row, all[i])
		}
		table.Rows = append(table.Rows, row)
	}
	if len(columnsOf) == 1 { // the terminal may be narrower than any table
		for _, line := range table.Lines(columns, terminal.Style{}) {
			lines = append(lines, terminal.Cut(line, columns))
		}
	} else {
		lines = append(lines, table.Lines(columns, style)...)
	}
	if hidden := s.Hidden + len(s.Leases) - len(shown); hidden > 0 {
		lines = append(lines, terminal.Cut(fmt.Sprintf("%d more", hidden), columns))
	}
	return lines
}

// cells returns a row of the table.
func (l Lease) cells(style terminal.Style) []terminal.Cell {
	row := []terminal.Cell{
		{Text: terminal.Clean(l.Name)}, {Text: terminal.Clean(l.Holder)}, {Text: span(l.HeldFor.Duration, l.AtLeast), Right: true},
		{Text: "-", Right: true}, {}, {Text: number(l.Waiting), Right: true},
	}
	switch {
	case l.Problem != "":
		row[1], row[2] = terminal.Cell{Text: terminal.Clean(l.Problem), Color: terminal.Red}, terminal.Cell{Text: "-", Right: true}
	case !l.Held:
		row[1] = terminal.Cell{Text: "no holder", Color: terminal.Red}
		if l.calm {
			row[1].Color = ""
		}
		if free := span(l.NoHolder.Duration, l.AtLeast); free != "-" {
			row[1].Text += " for " + free
		}
		row[2].Text = "-"
	case l.TTL.Duration > 0:
		share := float64(l.Left.Duration) / float64(l.TTL.Duration)
		color := terminal.Green
		switch {
		case l.Left.Duration <= 0:
			color = terminal.Red
		case share < lowShare:
			color = terminal.Yellow
		}
		left := max(l.Left.Duration, 0).Round(100 * time.Millisecond).String()
		if l.Estimated {
			left = "~" + left
		}
		row[3].Text = left
		row[4] = terminal.Cell{Text: terminal.Bar(share, barWidth, style), Color: color}
	}
	return row
}

// span returns a duration in whole seconds, or in tenths if it is short.
func span(d time.Duration, atLeast bool) string {
	if atLeast && d < 100*time.Millisecond {
		return "-"
	}
	text := d.Round(time.Second).String()
	if d < 10*time.Second {
		text = d.Round(100 * time.Millisecond).String()
	}
	if atLeast {
		return ">" + text
	}
	return text
}

func number(n *int) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}
