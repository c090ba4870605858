package shown_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tenurelock/tenure/internal/shown"
)

func TestATextIsShownInPrintableCharacters(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{"press-7/active", "press-7/active"},
		{`say "hi" <b>`, `say "hi" <b>`},
		{"größe 7", "größe 7"},
		{"a\x01\n", `a\x01\n`},
		{`a\x01`, `a\\x01`},
		{"\xff\u200b\u202e", `\xff\u200b\u202e`},
		{"\ufffd", "\ufffd"}, // the character itself is valid UTF-8
		{`PLANT\alice`, `PLANT\\alice`},
	} {
		if got := shown.Printable(test.text); got != test.want {
			t.Errorf("%q is shown as %q, want %q", test.text, got, test.want)
		}
	}
	long := strings.Repeat("\x01", shown.Max)
	a, b := shown.Printable(long+"a"), shown.Printable(long+"b")
	if len(a) > shown.Max || len(b) > shown.Max || a == b {
		t.Errorf("%d and %d bytes; the same: %t", len(a), len(b), a == b)
	}
}

// Two keys that look the same would be one series of a metric, which is refused.
func FuzzTwoTextsNeverLookLikeOne(f *testing.F) {
	f.Add("a\x01", `a\x01`)
	f.Add(`\`, `\\`)
	f.Add("\xff", "\ufffd")
	f.Add("\u200b", `\u200b`)
	f.Add(strings.Repeat("ö", shown.Max), strings.Repeat("x", 300))
	f.Add(strings.Repeat("\xff", shown.Max), strings.Repeat("\xff", 300))
	f.Add(strings.Repeat("a", 240)+"\x01\x02\x03\x04\x05", strings.Repeat("a", 300))
	f.Add("x"+strings.Repeat("ö", shown.Max), "")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := shown.Printable(a), shown.Printable(b)
		if len(x) > shown.Max || !utf8.ValidString(x) {
			t.Errorf("%q is shown as %q", a, x)
		}
		if a, b := shown.Cut(a), shown.Cut(b); a != b && shown.Printable(a) == shown.Printable(b) {
			t.Errorf("%q and %q are shown as %q", a, b, shown.Printable(a))
		}
		for _, text := range []string{a, b} { // what looks cut is not taken for what was cut
			if key := shown.Cut(text); key != text && shown.Cut(key) == key {
				t.Errorf("%q and %q are one key", text, key)
			}
			if seen := shown.Printable(text); len(text) <= shown.Max && seen != text && shown.Printable(seen) == seen {
				t.Errorf("%q and %q are shown alike", text, seen)
			}
		}
		if a != b && len(a) <= shown.Max && len(b) <= shown.Max && x == y {
			t.Errorf("%q and %q are shown as %q", a, b, x)
		}
	})
}

func TestALongNameIsCut(t *testing.T) {
	long := strings.Repeat("k", 1000)
	a, b := shown.Cut(long+"a"), shown.Cut(long+"b")
	if len(a) != shown.Max || a == b || a[:100] != long[:100] || shown.Cut("short") != "short" || len(shown.Cut(long[:shown.Max])) != shown.Max {
		t.Errorf("%q and %q", a, b)
	}
	huge := strings.Repeat("k", 1<<20)
	if a, b, c := shown.Cut("a"+huge), shown.Cut("b"+huge), shown.Cut(huge); a == b || a == c || b == c || shown.Cut(huge+"a") == shown.Cut(huge+"b") {
		t.Error("two keys with other ends are one")
	}
}

func TestEachQueueHasItsTurn(t *testing.T) {
	queues := [][]string{{"a1", "a2", "a3"}, {}, {"b1"}, {"c1", "c2"}}
	for limit, want := range []string{"", "a1", "a1 b1", "a1 b1 c1", "a1 b1 c1 a2", "a1 b1 c1 a2 c2", "a1 b1 c1 a2 c2 a3", "a1 b1 c1 a2 c2 a3"} {
		inTurn := shown.InTurn(len(queues), func(i int) shown.Queue[string] { return shown.Of(queues[i]) })
		if got := strings.Join(inTurn.Take(limit), " "); got != want {
			t.Errorf("%d of them are %q; want %q", limit, got, want)
		}
	}
	if len(queues[0]) != 3 {
		t.Error("the queues have changed")
	}
}

// The store takes the names of its leases with its lock held.
func TestNoMoreIsTakenFromTheQueuesThanIsReturned(t *testing.T) {
	looked := 0
	many := func(int) shown.Queue[int] { // without an end
		return func() (int, bool) {
			looked++
			return looked, true
		}
	}
	inTurn := shown.InTurn(1000, func(int) shown.Queue[int] { return shown.InTurn(1000, many) })
	if got := len(inTurn.Take(2500)); got != 2500 || looked != 2500 {
		t.Errorf("%d values are returned, and %d taken", got, looked)
	}
}
