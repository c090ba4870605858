package terminal

import (
	"math"
	"strings"
)

// eighths are blocks of one eighth of a column to a whole one.
var eighths = []rune("▏▎▍▌▋▊▉█")

// Bar returns a bar of width columns that is filled up to a share from 0 to 1. A share above 0 shows at
// least something.
func Bar(share float64, width int, style Style) string {
	share = min(max(share, 0), 1)
	if math.IsNaN(share) {
		share = 0
	}
	width = max(width, 0)
	if !style.Unicode {
		filled := int(math.Round(share * float64(width)))
		if share > 0 && width > 0 {
			filled = max(filled, 1)
		}
		return strings.Repeat("#", filled) + strings.Repeat(".", width-filled)
	}
	parts := int(math.Round(share * float64(width) * 8))
	if share > 0 && width > 0 {
		parts = max(parts, 1)
	}
	bar := strings.Repeat("█", parts/8)
	columns := parts / 8
	if parts%8 > 0 {
		bar += string(eighths[parts%8-1])
		columns++
	}
	return bar + strings.Repeat(" ", width-columns)
}
