package access

import "slices"

// glob is a pattern of bytes: * matches any bytes, including slashes and newlines, or none; ?
// matches exactly one; every other byte matches itself.
type glob string

// match reports whether the pattern matches all of text. It backtracks to the last star only: whatever an
// earlier star could match instead, the last one can match too. So its time is at most the product of both
// lengths, for any text.
func (g glob) match(text string) bool {
	const none = -1
	star, resume := none, 0 // the last star, and where in text matching resumes after it
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(g) && g[p] == '*':
			if p++; p == len(g) {
				return true
			}
			star, resume = p, t
		case p < len(g) && (g[p] == '?' || g[p] == text[t]):
			p++
			t++
		case star != none:
			resume++ // the star matches one byte more
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

// globs matches a text if one of its globs does.
type globs []glob

func (gs globs) match(text string) bool {
	return slices.ContainsFunc(gs, func(g glob) bool { return g.match(text) })
}
