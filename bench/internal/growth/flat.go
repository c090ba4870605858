package growth

import (
	"fmt"
	"strconv"
	"time"
)

// MaxGrowth is how much more an item may cost at a larger size and still count as flat.
const MaxGrowth = 1.5

// A Step is what a metric costs from one size to a larger one.
type Step struct {
	From, To int
	// Cost is what each further item has cost, for a Total, and the value at To for an Each.
	Cost float64
	// Growth is Cost divided by the least cost of the steps before, with their noise; 0 for the first
	// step. An Each is compared with the values at all smaller sizes, and its growth is 0 if the
	// difference is noise.
	Growth float64
}

// Steps returns the steps of a metric that mean more than noise.
func (s Series) Steps(m Metric) (steps []Step) {
	var last Point
	least := 0.0
	begun := false
	for _, p := range s.Points {
		value, ok := p.Values[m.key]
		switch {
		case !ok:
			continue
		case !begun:
			last, begun = p, true
			if m.Kind == Each {
				least = value
			}
			continue
		}
		before := last.Values[m.key]
		step := Step{From: last.Size, To: p.Size, Cost: value}
		// Noise can make a step look cheaper than it was, so that the next one looks dear: a step counts as
		// the most that it may have cost.
		most := value
		if m.Kind == Total {
			if value-before < m.Noise {
				continue // the next size is compared with the same one
			}
			items := float64(p.Size - last.Size)
			step.Cost, most = (value-before)/items, (value-before+m.Noise)/items
		}
		if least > 0 && (m.Kind == Total || value-least >= m.Noise) {
			step.Growth = step.Cost / least
		}
		if least == 0 || most < least {
			least = most
		}
		steps = append(steps, step)
		last = p
	}
	return steps
}

// NotFlat says what costs more per item at a larger size: a sentence for each metric, about its worst step.
func (s Series) NotFlat() (sentences []string) {
	for _, m := range s.Metrics {
		var worst Step
		for _, step := range s.Steps(m) {
			if step.Growth > worst.Growth {
				worst = step
			}
		}
		if worst.Growth <= MaxGrowth {
			continue
		}
		what := fmt.Sprintf("each %s from %s to %s costs %s", s.Item, thousands(worst.From), thousands(worst.To), m.Format(worst.Cost))
		if m.Kind == Each {
			what = fmt.Sprintf("with %s %s it is %s", thousands(worst.To), s.Name, m.Format(worst.Cost))
		}
		sentences = append(sentences, fmt.Sprintf("%s: %s, %s: %s, %.1f times as much as at the best smaller size.", s.Name, m.Panel, m.Name, what, worst.Growth))
	}
	return sentences
}

// Format writes a value with its unit and three digits.
func (m Metric) Format(value float64) string {
	if m.Unit == Bytes {
		for _, unit := range []struct {
			name string
			size float64
		}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
			if value >= unit.size {
				return digits(value/unit.size) + " " + unit.name
			}
		}
		return digits(value) + " B"
	}
	switch d := time.Duration(value * float64(time.Second)); {
	case d >= time.Second:
		return digits(value) + " s"
	case d >= time.Millisecond:
		return digits(value*1e3) + " ms"
	case d >= time.Microsecond:
		return digits(value*1e6) + " µs"
	}
	return digits(value*1e9) + " ns"
}

// digits writes a number with three digits.
func digits(value float64) string {
	switch {
	case value < 10:
		return strconv.FormatFloat(value, 'f', 2, 64)
	case value < 100:
		return strconv.FormatFloat(value, 'f', 1, 64)
	}
	return strconv.FormatFloat(value, 'f', 0, 64)
}

// thousands writes a size with commas.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
