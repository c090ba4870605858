package access

import (
	"slices"
	"strings"
)

// glob is a pattern of bytes: * matches any run of them, also none and also of
// slashes and newlines; ? matches exactly one; everything else matches itself.
type glob string

// match reports whether the pattern matches all of text.
func (g glob) match(text string) bool { return g.matchBut(text, "") }

// covers reports whether the pattern matches every topic that a filter of MQTT matches,
// but for the topic above a # at its end. No pattern for topics has + or #, so these are
// taken by a star only, which would take anything in their place. It may report false
// where many patterns cover a filter only together, or ? does.
func (g glob) covers(filter string) bool { return g.matchBut(filter, "+#") }

// matchBut is match where ? stands for none of the bytes in but. It remembers only the
// last star: whatever an earlier star could take instead, the last can take too.
// So the time is at most the product of both lengths, whoever chose the text.
func (g glob) matchBut(text, but string) bool {
	const none = -1
	star, resume := none, 0 // the last star, and where in text what follows it was tried
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(g) && g[p] == '*':
			if p++; p == len(g) {
				return true
			}
			star, resume = p, t
		case p < len(g) && (g[p] == '?' && strings.IndexByte(but, text[t]) < 0 || g[p] == text[t]):
			p++
			t++
		case star != none:
			resume++ // the star takes one byte more
			p, t = star, resume
		default:
			return false
		}
	}
	for p < len(g) && g[p] == '*' {
		p++
	}
	return p == len(g)
}

// globs match what one of them matches.
type globs []glob

func (gs globs) match(text string) bool {
	for _, g := range gs {
		if g.match(text) {
			return true
		}
	}
	return false
}

// cover reports whether every topic that a filter of MQTT matches is matched.
func (gs globs) cover(filter string) bool {
	if above, ok := strings.CutSuffix(filter, "/#"); ok && !gs.cover(above) {
		return false // a/# matches the topic a too
	}
	return slices.ContainsFunc(gs, func(g glob) bool { return g.covers(filter) })
}

// with returns gs and more, without repetitions.
func (gs globs) with(more globs) globs {
	for _, g := range more {
		if !slices.Contains(gs, g) {
			gs = append(gs, g)
		}
	}
	return gs
}
