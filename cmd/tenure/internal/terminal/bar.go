package terminal

import (
	"fmt"
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

// Bucket is a line of a histogram.
type Bucket struct {
	Label string // clean
	Count int64
}

// Histogram returns a line for each bucket: its label, a bar, its count and its share of all.
func Histogram(buckets []Bucket, width int, style Style) []string {
	var labels, counts int
	var most, sum int64
	for _, b := range buckets {
		labels, counts = max(labels, Width(b.Label)), max(counts, len(fmt.Sprint(b.Count)))
		most, sum = max(most, b.Count), sum+b.Count
	}
	room := max(width-labels-counts-len("    100.00%"), 5)
	lines := make([]string, 0, len(buckets))
	for _, b := range buckets {
		length, share := 0.0, 0.0
		if most > 0 {
			length, share = float64(b.Count)/float64(most), 100*float64(b.Count)/float64(sum)
		}
		bar := Bar(length, room, style)
		if !style.Unicode {
			bar = strings.ReplaceAll(bar, ".", " ")
		}
		lines = append(lines, fmt.Sprintf("%*s  %s %*d %6.2f%%", labels, b.Label, bar, counts, b.Count, share))
	}
	return lines
}
