package hlc

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name string
		text string
		want Timestamp
	}{
		{"the protocol's example", "1696374425000:0:CLIENT", Timestamp{1696374425000, 0, "CLIENT"}},
		{"padded as deployed clients send it", "001696374425000:00000:CLIENT", Timestamp{1696374425000, 0, "CLIENT"}},
		{"more zeros than any padding", strings.Repeat("0", 100) + "7:" + strings.Repeat("0", 100) + "8:n", Timestamp{7, 8, "n"}},
		{"the largest numbers", "9223372036854775807:18446744073709551615:n", Timestamp{math.MaxInt64, math.MaxUint64, "n"}},
		{"a node beyond ASCII", "1:2:größe-世界", Timestamp{1, 2, "größe-世界"}},
		{"the longest node", "1:2:" + strings.Repeat("n", maxNode), Timestamp{1, 2, strings.Repeat("n", maxNode)}},
	}
	for _, test := range tests {
		got, err := Parse(test.text)
		if err != nil || got != test.want {
			t.Errorf("%s: Parse(%q) = %v, %v; want %v", test.name, test.text, got, err, test.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name  string
		text  string
		cause string
	}{
		{"the empty text", "", "one field"},
		{"two fields", "1696374425000:0", "two fields"},
		{"four fields", "1696374425000:0:CLIENT:1", "node contains a colon"},
		{"an empty wall clock", ":0:CLIENT", "wall clock is not a decimal number"},
		{"a signed wall clock", "+1:0:CLIENT", "wall clock is not a decimal number"},
		{"a hexadecimal wall clock", "0x1:0:CLIENT", "wall clock is not a decimal number"},
		{"digits of another script", "١:0:CLIENT", "wall clock is not a decimal number"},
		{"a wall clock of 2^63", "9223372036854775808:0:CLIENT", "wall clock is out of range"},
		{"a negative counter", "1:-1:CLIENT", "counter is not a decimal number"},
		{"a counter of 2^64", "1:18446744073709551616:CLIENT", "counter is out of range"},
		{"an empty node", "1:0:", "node is empty"},
		{"a line break in the node", "1:0:CLIENT\n", "node contains a control character"},
		{"a control character of Latin-1", "1:0:CLI\u0085ENT", "node contains a control character"},
		{"bytes that are not UTF-8", "1:0:CLI\xffENT", "node is not valid UTF-8"},
		{"a node one byte too long", "1:0:" + strings.Repeat("n", maxNode+1), "node is longer than 983 bytes"},
		{"a text one byte too long", strings.Repeat("0", maxText-3) + ":0:n", "longer than 1024 bytes"},
	}
	for _, test := range tests {
		got, err := Parse(test.text)
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), test.cause) {
			t.Errorf("%s: Parse(%q) has error %v; want ErrMalformed with %q", test.name, test.text, err, test.cause)
		}
		if !got.IsZero() {
			t.Errorf("%s: Parse(%q) = %v with an error; want the zero value", test.name, test.text, got)
		}
	}
}

func TestParseErrorQuotesOnlyTheBeginning(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 1000), strings.Repeat("\xff", 1<<20)} {
		_, err := Parse(text)
		if err == nil || len(err.Error()) > 512 {
			t.Errorf("the error for %d bytes is %d bytes long: %v", len(text), len(err.Error()), err)
		}
	}
}

// Invariant 16: tokens compare by integers (ms, counter), then node; never as strings.
func TestInvariant16TimestampsCompareAsIntegers(t *testing.T) {
	ascending := []Timestamp{
		{},
		{0, 0, "a"},
		{0, 1, "a"},
		{9, 0, "a"}, // as strings, 9 would come after 10
		{10, 0, "B"},
		{10, 0, "a"},
		{10, 0, "aa"},
		{10, 0, "\u00ff"}, // bytes, not runes or a collation, decide
		{10, 0, "\U00010000"},
		{10, 9, "a"},
		{10, 10, "a"},
		{10, math.MaxInt64, "a"},
		{10, math.MaxInt64 + 1, "a"}, // a signed counter would go negative here
		{10, math.MaxUint64, "z"},
		{11, 0, "a"},
		{math.MaxInt64, 0, "a"},
	}
	for i, x := range ascending {
		for j, y := range ascending {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := x.Compare(y); got != want {
				t.Errorf("(%v).Compare(%v) = %d; want %d", x, y, got, want)
			}
			if (x == y) != (want == 0) {
				t.Errorf("%v == %v is %t, but Compare is %d", x, y, x == y, want)
			}
		}
	}
	if !slices.IsSortedFunc(ascending, Timestamp.Compare) {
		t.Error("Compare does not serve as the order of slices.IsSortedFunc")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"1696374425000:0:CLIENT", "001696374425000:00000:CLIENT", "9223372036854775807:18446744073709551615:n",
		"9223372036854775808:0:n", "0:18446744073709551616:n", "1:2:a:b", "::", "-1:+2: n", "1:2:\xff",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || !parsed.IsZero() {
				t.Fatalf("Parse(%q) = %v, %v; want the zero value and ErrMalformed", text, parsed, err)
			}
			return
		}
		if parsed.IsZero() {
			t.Fatalf("Parse(%q) yields the zero value, which means no timestamp", text)
		}
		if fault := nodeFault(parsed.Node); fault != "" {
			t.Errorf("Parse(%q) accepts a node that %s", text, fault)
		}
		plain := parsed.String()
		if got, err := Parse(plain); err != nil || got != parsed {
			t.Errorf("%q became %q, and that %v, %v", text, plain, got, err)
		}
		padded := fmt.Sprintf("%015d:%05d:%s", parsed.Wall, parsed.Counter, parsed.Node) // as deployed clients do
		if got, err := Parse(padded); err != nil || got != parsed {
			t.Errorf("%q became %q, and that %v, %v", text, padded, got, err)
		}
		if len(plain) > len(text) {
			t.Errorf("%q is longer than %q, from which it came", plain, text)
		}
		marshalled, err := parsed.MarshalText()
		if err != nil || string(marshalled) != plain {
			t.Errorf("MarshalText = %q, %v; want %q", marshalled, err, plain)
		}
	})
}

// Both are text for logs and JSON, and the zero value is the empty text.
func TestTimestampsAndTokensSurviveJSON(t *testing.T) {
	type record struct {
		Version, None Timestamp
		Fence         Token
	}
	want := record{Version: Timestamp{1696374425000, 1, "StateStore"}, Fence: Token{1696374425000, 7, "StateStore"}}
	data, err := json.Marshal(want)
	const text = `{"Version":"1696374425000:1:StateStore","None":"","Fence":"1696374425000:7:StateStore"}`
	if err != nil || string(data) != text {
		t.Errorf("Marshal = %s, %v; want %s", data, err, text)
	}
	var got record
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("Unmarshal = %v, %v; want %v", got, err, want)
	}
	if err := json.Unmarshal([]byte(`{"Version":"1:2"}`), &got); !errors.Is(err, ErrMalformed) || got != want {
		t.Errorf("Unmarshal of a malformed text = %v, and it left %v; want ErrMalformed, and what was there", err, got)
	}
	for _, malformed := range []Timestamp{{-1, 0, "n"}, {1, 0, ""}, {1, 0, "a:b"}} {
		if text, err := json.Marshal(malformed); !errors.Is(err, ErrMalformed) {
			t.Errorf("Marshal of %v = %s, %v; want ErrMalformed", malformed, text, err)
		}
	}
}

func TestATokenHasTheTextAndTheOrderOfItsTimestamp(t *testing.T) {
	for _, x := range []Timestamp{{}, {9, 10, "b"}, {10, 2, "a"}} {
		parsed, err := ParseToken(x.String())
		if token := Token(x); token.String() != x.String() || token.IsZero() != x.IsZero() || parsed != token || (err == nil) == x.IsZero() {
			t.Errorf("the token of %v is %v, and parsed %v, %v", x, token, parsed, err)
		}
		for _, y := range []Timestamp{{}, {9, 10, "b"}, {10, 2, "a"}} {
			if got, want := Token(x).Compare(Token(y)), x.Compare(y); got != want {
				t.Errorf("Compare(%v, %v) = %d; want %d", x, y, got, want)
			}
		}
	}
}
