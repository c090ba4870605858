package access

import (
	"strings"
	"testing"
)

// A matcher that tries all ways to divide the text among the stars does not come
// back from this.
func TestGlobWithManyStarsComesToAnEnd(t *testing.T) {
	pattern := glob(strings.Repeat("*a", 100) + "*b")
	if pattern.match(strings.Repeat("a", 10_000)) {
		t.Error("there is no b")
	}
	if !pattern.match(strings.Repeat("a", 10_000) + "b") {
		t.Error("there is a b")
	}
}

// matchSlowly is the definition: a star is nothing, or one byte and a star.
func matchSlowly(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return matchSlowly(pattern[1:], text) || text != "" && matchSlowly(pattern, text[1:])
	case text == "":
		return false
	}
	return (pattern[0] == '?' || pattern[0] == text[0]) && matchSlowly(pattern[1:], text[1:])
}

func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""}, {"", "a"}, {"a", "*"}, {"press-7", "press-7"}, {"press-7", "press-70"}, {"press-7", "xpress-7"}, {"Press", "press"},
		{"*", ""}, {"*", "a/b\n"}, {"a*c", "ac"}, {"a*c", "abbc"}, {"press-7/*", "press-7"}, {"*-7", "press-7x"}, {"press-7**", "press-7"},
		{"*aab", "aaab"}, {"*ab*b", "ab"}, {"*a*b", "xaxbxb"}, {"a**b", "axb"}, {"a*b?c", "axxbyc"}, {"a*b", "a\xff\x00b"},
		{"?", "\u00e9"}, {"??", "\u00e9"}, {"a?b", "a/b"}, {"press-?", "press-"}, {"a*?", "a"}, {"a*?", "ab"}, {"?*", "\xff"},
		{"[ab]", "a"}, {`\*`, `\anything`}, {`\*`, "*"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if strings.Count(pattern, "*") > 4 || len(text) > 40 {
			t.Skip("the definition takes exponential time")
		}
		if got, want := glob(pattern).match(text), matchSlowly(pattern, text); got != want {
			t.Errorf("%q on %q: %v, want %v", pattern, text, got, want)
		}
	})
}
