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
		{"padded, with a counter", "001696374425000:00042:CLIENT", Timestamp{1696374425000, 42, "CLIENT"}},
		{"more zeros than any padding", strings.Repeat("0", 100) + "7:" + strings.Repeat("0", 100) + "8:n", Timestamp{7, 8, "n"}},
		{"the epoch", "0:0:n", Timestamp{0, 0, "n"}},
		{"the largest numbers", "9223372036854775807:18446744073709551615:n", Timestamp{math.MaxInt64, math.MaxUint64, "n"}},
		{"a node with spaces and punctuation", "1:2:press 7/gateway-a", Timestamp{1, 2, "press 7/gateway-a"}},
		{"a node beyond ASCII", "1:2:größe-世界", Timestamp{1, 2, "größe-世界"}},
		{"a node of digits", "1:2:3", Timestamp{1, 2, "3"}},
		{"the longest node", "1:2:" + strings.Repeat("n", maxNode), Timestamp{1, 2, strings.Repeat("n", maxNode)}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse(test.text)
			if err != nil || got != test.want {
				t.Errorf("Parse(%q) = %v, %v; want %v", test.text, got, err, test.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name  string
		text  string
		cause string
	}{
		{"the empty text", "", "one field"},
		{"a number alone", "1696374425000", "one field"},
		{"two fields", "1696374425000:0", "two fields"},
		{"four fields", "1696374425000:0:CLIENT:1", "node contains a colon"},
		{"a colon at the end", "1696374425000:0:CLIENT:", "node contains a colon"},
		{"an empty wall clock", ":0:CLIENT", "wall clock is not a decimal number"},
		{"a negative wall clock", "-1:0:CLIENT", "wall clock is not a decimal number"},
		{"a signed wall clock", "+1:0:CLIENT", "wall clock is not a decimal number"},
		{"a space before the wall clock", " 1:0:CLIENT", "wall clock is not a decimal number"},
		{"a hexadecimal wall clock", "0x1:0:CLIENT", "wall clock is not a decimal number"},
		{"an underscore in the wall clock", "1_000:0:CLIENT", "wall clock is not a decimal number"},
		{"a fraction in the wall clock", "1.5:0:CLIENT", "wall clock is not a decimal number"},
		{"digits of another script", "١:0:CLIENT", "wall clock is not a decimal number"},
		{"a wall clock of 2^63", "9223372036854775808:0:CLIENT", "wall clock is out of range"},
		{"a wall clock of 2^64", "18446744073709551616:0:CLIENT", "wall clock is out of range"},
		{"an empty counter", "1::CLIENT", "counter is not a decimal number"},
		{"a negative counter", "1:-1:CLIENT", "counter is not a decimal number"},
		{"a space after the counter", "1:0 :CLIENT", "counter is not a decimal number"},
		{"a counter of 2^64", "1:18446744073709551616:CLIENT", "counter is out of range"},
		{"an empty node", "1:0:", "node is empty"},
		{"a line break in the node", "1:0:CLIENT\n", "node contains a control character"},
		{"a NUL in the node", "1:0:CLI\x00ENT", "node contains a control character"},
		{"a control character of Latin-1", "1:0:CLI\u0085ENT", "node contains a control character"},
		{"bytes that are not UTF-8", "1:0:CLI\xffENT", "node is not valid UTF-8"},
		{"a node one byte too long", "1:0:" + strings.Repeat("n", maxNode+1), "node is longer than 983 bytes"},
		{"a text one byte too long", strings.Repeat("0", maxText-3) + ":0:n", "longer than 1024 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse(test.text)
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), test.cause) {
				t.Errorf("Parse(%q) has error %v; want ErrMalformed with %q", test.text, err, test.cause)
			}
			if !got.IsZero() {
				t.Errorf("Parse(%q) = %v with an error; want the zero value", test.text, got)
			}
		})
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

func TestParseDoesNotAllocate(t *testing.T) {
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := Parse("001696374425000:00042:CLIENT"); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("Parse allocates %v times; want 0", allocs)
	}
}

func TestAppend(t *testing.T) {
	tests := []struct {
		name      string
		timestamp Timestamp
		plain     string
	}{
		{"the protocol's example", Timestamp{1696374425000, 0, "CLIENT"}, "1696374425000:0:CLIENT"},
		{"the epoch", Timestamp{0, 1, "n"}, "0:1:n"},
		{"numbers of 15 and 5 digits", Timestamp{999999999999999, 99999, "n"}, "999999999999999:99999:n"},
		{"numbers of 16 and 6 digits", Timestamp{1000000000000000, 100000, "n"}, "1000000000000000:100000:n"},
		{"the largest numbers", Timestamp{math.MaxInt64, math.MaxUint64, "n"},
			"9223372036854775807:18446744073709551615:n"},
		{"the zero value", Timestamp{}, "0:0:"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := string(test.timestamp.Append([]byte("ts="))); got != "ts="+test.plain {
				t.Errorf("appendText = %q; want %q", got, "ts="+test.plain)
			}
			if got := test.timestamp.String(); got != test.plain {
				t.Errorf("String = %q; want %q", got, test.plain)
			}
		})
	}
}

func TestTextMethodsMapZeroValueToEmptyText(t *testing.T) {
	text, err := Timestamp{}.MarshalText()
	if err != nil || len(text) != 0 {
		t.Errorf("MarshalText = %q, %v; want the empty text", text, err)
	}
	got := Timestamp{1, 2, "n"}
	if err := got.UnmarshalText(nil); err != nil || !got.IsZero() {
		t.Errorf("UnmarshalText(nil) = %v, %v; want the zero value", got, err)
	}
}

func TestTimestampSurvivesJSON(t *testing.T) {
	type record struct{ Version, Fence Timestamp }
	want := record{Version: Timestamp{1696374425000, 1, "StateStore"}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if text := `{"Version":"1696374425000:1:StateStore","Fence":""}`; string(data) != text {
		t.Errorf("Marshal = %s; want %s", data, text)
	}
	var got record
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("Unmarshal = %v, %v; want %v", got, err, want)
	}
}

func TestMarshalTextRefusesWhatParseWould(t *testing.T) {
	for name, timestamp := range map[string]Timestamp{
		"a negative wall clock": {-1, 0, "n"},
		"an empty node":         {1, 0, ""},
		"a colon in the node":   {1, 0, "a:b"},
	} {
		if text, err := timestamp.MarshalText(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: MarshalText = %q, %v; want ErrMalformed", name, text, err)
		}
		if _, err := Parse(timestamp.String()); err == nil {
			t.Errorf("%s: Parse accepts what MarshalText refuses", name)
		}
	}
}

func TestUnmarshalTextErrorChangesNothing(t *testing.T) {
	for _, text := range []string{"1:2", strings.Repeat("0", maxText) + "1:2:n", "1:2:" + strings.Repeat("n", 1<<16)} {
		got := Timestamp{1, 2, "n"}
		if err := got.UnmarshalText([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("UnmarshalText of %d bytes has error %v; want ErrMalformed", len(text), err)
		}
		if want := (Timestamp{1, 2, "n"}); got != want {
			t.Errorf("UnmarshalText of %d bytes left %v; want %v", len(text), got, want)
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
		"1696374425000:0:CLIENT",
		"001696374425000:00000:CLIENT",
		"1696374425000:1:StateStore",
		"9223372036854775807:18446744073709551615:n",
		"9223372036854775808:0:n",
		"0:18446744073709551616:n",
		"1:2:a:b",
		"1:2:",
		"::",
		"-1:+2: n",
		"1:2:\xff",
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

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("001696374425000:00042:gateway-a"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	timestamp := Timestamp{1696374425000, 42, "gateway-a"}
	b.ReportAllocs()
	var dst []byte
	for b.Loop() {
		dst = timestamp.Append(dst[:0])
	}
}
