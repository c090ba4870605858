package access

import (
	"strings"
	"testing"
)

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		name    string
		pattern glob
		text    string
		want    bool
	}{
		{"a literal matches itself", "press-7", "press-7", true},
		{"a literal is anchored at the end", "press-7", "press-70", false},
		{"a literal is anchored at the beginning", "press-7", "xpress-7", false},
		{"a literal does not match a part of itself", "press-7", "press", false},
		{"case counts", "Press", "press", false},
		{"a star matches everything", "*", "press-7/active", true},
		{"a star matches nothing", "*", "", true},
		{"a star matches a run in the middle", "a*c", "abbbc", true},
		{"a star matches no run in the middle", "a*c", "ac", true},
		{"a star at the end matches none", "press-7*", "press-7", true},
		{"stars at the end match none", "press-7**", "press-7", true},
		{"a star matches slashes", "press-7/*", "press-7/a/b/c", true},
		{"a star in the middle matches slashes", "a*d", "a/b/c/d", true},
		{"a star matches newlines", "a*b", "a\n\nb", true},
		{"a star matches bytes that are not text", "a*b", "a\xff\x00\xfeb", true},
		{"what precedes a star is needed", "press-7/*", "press-7", false},
		{"what follows a star is anchored", "*-7", "press-7x", false},
		{"what follows a star is found late", "*ab", "aaab", true},
		{"what follows a star is found where a first try overlaps it", "*aab", "aaab", true},
		{"the last star gives way", "*a*b", "xaxbxb", true},
		{"two stars do not share what is between them", "*ab*b", "ab", false},
		{"stars side by side are one", "a**b", "axb", true},
		{"a question mark matches one byte", "press-?", "press-7", true},
		{"a question mark matches a slash", "a?b", "a/b", true},
		{"a question mark does not match none", "press-?", "press-", false},
		{"a question mark does not match two", "press-?", "press-77", false},
		{"a question mark is a byte and not a character", "?", "é", false},
		{"two question marks are a character of two bytes", "??", "é", true},
		{"a question mark after a star needs a byte", "a*?", "a", false},
		{"a question mark after a star is given one", "a*?", "ab", true},
		{"brackets are themselves", "[ab]", "a", false},
		{"brackets match brackets", "[ab]", "[ab]", true},
		{"a backslash escapes nothing", `\*`, `\anything`, true},
		{"a backslash is needed", `\*`, "*", false},
		{"bytes that are not text match themselves", "\xff\x00", "\xff\x00", true},
		{"bytes that are not text differ", "\xff", "\xfe", false},
		{"a star in the text is an ordinary byte", "a", "*", false},
		{"nothing matches nothing", "", "", true},
		{"nothing does not match something", "", "a", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.pattern.match(test.text); got != test.want {
				t.Errorf("%q on %q: %v", test.pattern, test.text, got)
			}
		})
	}
}

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
		{"", ""}, {"*", "a"}, {"a*b?c", "axxbyc"}, {"*ab*b", "ab"}, {"**a", "aa"}, {"?*", "\xff"}, {"*a*b", "xaxbxb"},
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
