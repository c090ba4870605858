package activity_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tenurelock/tenure/server/activity"
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
		if got := activity.Printable(test.text); got != test.want {
			t.Errorf("%q is shown as %q, want %q", test.text, got, test.want)
		}
	}
	long := strings.Repeat("\x01", activity.MaxKey)
	a, b := activity.Printable(long+"a"), activity.Printable(long+"b")
	if len(a) > activity.MaxKey || len(b) > activity.MaxKey || a == b {
		t.Errorf("%d and %d bytes; the same: %t", len(a), len(b), a == b)
	}
}

// Two keys that look the same would be one series of a metric, which is refused.
func FuzzTwoTextsNeverLookLikeOne(f *testing.F) {
	f.Add("a\x01", `a\x01`)
	f.Add(`\`, `\\`)
	f.Add("\xff", "\ufffd")
	f.Add("\u200b", `\u200b`)
	f.Add(strings.Repeat("ö", activity.MaxKey), strings.Repeat("x", 300))
	f.Add(strings.Repeat("\xff", activity.MaxKey), strings.Repeat("\xff", 300))
	f.Add(strings.Repeat("a", 240)+"\x01\x02\x03\x04\x05", strings.Repeat("a", 300))
	f.Add("x"+strings.Repeat("ö", activity.MaxKey), "")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := activity.Printable(a), activity.Printable(b)
		if len(x) > activity.MaxKey || !utf8.ValidString(x) {
			t.Errorf("%q is shown as %q", a, x)
		}
		if a, b := activity.CutKey(a), activity.CutKey(b); a != b && activity.Printable(a) == activity.Printable(b) {
			t.Errorf("%q and %q are shown as %q", a, b, activity.Printable(a))
		}
		for _, text := range []string{a, b} { // what looks cut is not taken for what was cut
			if key := activity.CutKey(text); key != text && activity.CutKey(key) == key {
				t.Errorf("%q and %q are one key", text, key)
			}
			if shown := activity.Printable(text); len(text) <= activity.MaxKey && shown != text && activity.Printable(shown) == shown {
				t.Errorf("%q and %q are shown alike", text, shown)
			}
		}
		if a != b && len(a) <= activity.MaxKey && len(b) <= activity.MaxKey && x == y {
			t.Errorf("%q and %q are shown as %q", a, b, x)
		}
	})
}
