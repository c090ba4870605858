package terminal

import "strings"

const (
	columnGap = 2
	narrowest = 4 // of a column that had to shrink
)

// Cell is a field of a table. Its text must be clean; Color is for terminals.
type Cell struct {
	Text  string
	Color Color // empty: none
	Right bool  // aligned to the right
}

// Table is rows under a head. The zero value is an empty table.
type Table struct {
	Head []string
	Rows [][]Cell // each as long as Head
}

// Lines returns the table as lines of at most width columns: where it is too wide, the widest columns
// are cut. 0: no limit.
func (t Table) Lines(width int, style Style) []string {
	widths := make([]int, len(t.Head))
	for i, head := range t.Head {
		widths[i] = Width(head)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], Width(row[i].Text))
		}
	}
	if width > 0 {
		shrink(widths, width-columnGap*(len(widths)-1))
	}
	head := make([]Cell, len(t.Head))
	for i, text := range t.Head {
		head[i] = Cell{Text: text, Color: Bold, Right: len(t.Rows) > 0 && t.Rows[0][i].Right}
	}
	lines := make([]string, 0, len(t.Rows)+1)
	for _, row := range append([][]Cell{head}, t.Rows...) {
		lines = append(lines, line(row, widths, style))
	}
	return lines
}

func line(row []Cell, widths []int, style Style) string {
	var b strings.Builder
	for i, cell := range row {
		text := fit(cell.Text, widths[i])
		if cell.Right {
			content := strings.TrimRight(text, " ")
			text = fit("", widths[i]-Width(content)) + content
		}
		if i == len(row)-1 {
			text = strings.TrimRight(text, " ")
		} else {
			text += strings.Repeat(" ", columnGap)
		}
		if cell.Color != "" {
			text = style.Paint(cell.Color, text)
		}
		b.WriteString(text)
	}
	return b.String()
}

// shrink makes the widest columns narrower until the sum is at most total, or all are narrow.
func shrink(widths []int, total int) {
	for {
		sum, widest, second := 0, 0, narrowest
		for i, width := range widths {
			sum += width
			if width > widths[widest] {
				widest = i
			}
		}
		for i, width := range widths {
			if i != widest && width < widths[widest] {
				second = max(second, width)
			}
		}
		if sum <= total || widths[widest] <= narrowest {
			return
		}
		widths[widest] = max(second, widths[widest]-(sum-total))
	}
}
