package statestore

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
)

func TestWordsThatAreNotVerbs(t *testing.T) {
	for _, word := range []string{
		"", " ", "SET ", " SET", "SE", "SETT", "SET\x00", "INCR", "KEYNOTIFYX", "NOTIFY", "STOP", "NX",
		"\u017fet", // U+017F, whose upper case is an S
		"\xff\xff\xff", strings.Repeat("SET", 1<<16),
	} {
		command := Parse(Request{Payload: []byte(payload(word, "k", "v"))})
		if command.Err() != protocol.UnknownCommand || command.Verb != VerbUnknown {
			t.Errorf("%.20q: got %v, %v; want %q", word, command.Verb, command.Err(), textUnknown)
		}
	}
}

func TestNumberOfArguments(t *testing.T) {
	tests := []struct {
		line string
		want string // empty: accepted
	}{
		{"SET", textArguments},
		{"SET k", textArguments},
		{"SET k v", ""},
		{"SET k v PX", textSyntax}, // the number of arguments is valid: the option is not
		{"SET k v NX PX 5 more", textSyntax},
		{"GET", textArguments},
		{"GET k", ""},
		{"GET k v", textArguments},
		{"DEL", textArguments},
		{"DEL k", ""},
		{"DEL k v", textArguments},
		{"VDEL", textArguments},
		{"VDEL k", textArguments},
		{"VDEL k v", ""},
		{"VDEL k v w", textArguments},
		{"KEYNOTIFY", textArguments},
		{"KEYNOTIFY k", ""},
		{"KEYNOTIFY k k2", textSyntax},
	}
	for _, test := range tests {
		t.Run(test.line, func(t *testing.T) {
			wantErr(t, Parse(Request{Payload: []byte(payload(strings.Split(test.line, " ")...))}), test.want)
		})
	}
}

func wantErr(t *testing.T, command Command, want string) {
	t.Helper()
	err := command.Err()
	if want == "" {
		if err != nil {
			t.Errorf("got error %q; want none", err)
		}
		return
	}
	var refusal protocol.Refusal
	if !errors.As(err, &refusal) || string(refusal) != want {
		t.Errorf("got error %v; want %q", err, want)
	}
}

func TestSetOptions(t *testing.T) {
	tests := []struct {
		name      string
		options   string
		condition Condition
		expected  string // by NEX; default: the new value
		lifetime  time.Duration
		fault     bool
	}{
		{name: "none", options: ""},
		{name: "NX", options: "NX", condition: IfMissing},
		{name: "NEX", options: "NEX", condition: IfMissingOrEqual},
		{name: "PX", options: "PX 250", lifetime: 250 * time.Millisecond},
		{name: "lower case", options: "nex px 250", condition: IfMissingOrEqual, lifetime: 250 * time.Millisecond},
		{name: "mixed case", options: "nX Px 250", condition: IfMissing, lifetime: 250 * time.Millisecond},
		{name: "condition before PX", options: "NEX PX 7", condition: IfMissingOrEqual, lifetime: 7 * time.Millisecond},
		{name: "PX before the condition", options: "PX 7 NEX", condition: IfMissingOrEqual, lifetime: 7 * time.Millisecond},
		{name: "NX twice", options: "NX NX", fault: true},
		{name: "NEX twice", options: "NEX NEX", fault: true},
		{name: "NX and NEX", options: "NX NEX", fault: true},
		{name: "NEX and NX", options: "NEX NX", fault: true},
		{name: "NX and NEX around PX", options: "NX PX 5 NEX", fault: true},
		{name: "PX twice", options: "PX 5 PX 5", fault: true},
		{name: "PX twice, around a condition", options: "PX 5 NX PX 6", fault: true},
		{name: "PX without a number", options: "PX", fault: true},
		{name: "PX without a number, before a condition", options: "PX NX", fault: true},
		{name: "a number without PX", options: "5", fault: true},
		{name: "an unknown option", options: "XX", fault: true},
		{name: "an unknown option after good ones", options: "NX PX 5 GET", fault: true},
		{name: "an option that begins well", options: "NXX", fault: true},
		{name: "an option of another verb", options: "STOP", fault: true},
		{name: "seconds", options: "EX 5", fault: true},
		{name: "an empty option", options: " NX", fault: true},
		{name: "NEX with a value", options: "NEX w", condition: IfMissingOrEqual, expected: "w"},
		{name: "NEX with a value before PX", options: "NEX w PX 7", condition: IfMissingOrEqual, expected: "w", lifetime: 7 * time.Millisecond},
		{name: "NEX with a value after PX", options: "PX 7 NEX w", condition: IfMissingOrEqual, expected: "w", lifetime: 7 * time.Millisecond},
		{name: "NEX with two values", options: "NEX w x", fault: true},
		{name: "NEX with an option for a value", options: "NEX PX", fault: true},
		{name: "NX with a value", options: "NX w", fault: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			words := []string{"SET", "k", "v"}
			if test.options != "" {
				words = append(words, strings.Split(test.options, " ")...)
			}
			command := Parse(Request{Payload: []byte(payload(words...))})
			if test.fault {
				wantErr(t, command, textSyntax)
				return
			}
			wantErr(t, command, "")
			expected := ""
			if test.condition == IfMissingOrEqual {
				expected = cmp.Or(test.expected, "v")
			}
			if command.Condition != test.condition || string(command.Expected) != expected || command.Lifetime != test.lifetime {
				t.Errorf("got condition %d, lifetime %v; want %d, %v", command.Condition, command.Lifetime, test.condition, test.lifetime)
			}
			if command.Key != "k" || string(command.Value) != "v" {
				t.Errorf("got key %q, value %q", command.Key, command.Value)
			}
		})
	}
}

// docs/protocol.md §2.2: PX must be a positive integer.
func TestPX(t *testing.T) {
	const longest = 9223372036854 * time.Millisecond // 292 years, the longest Duration in milliseconds
	tests := []struct {
		name  string
		text  string
		want  time.Duration
		fault bool
	}{
		{name: "one", text: "1", want: time.Millisecond},
		{name: "a lease", text: "10000", want: 10 * time.Second},
		{name: "leading zeros", text: "0005", want: 5 * time.Millisecond},
		{name: "more zeros than digits in a number", text: strings.Repeat("0", 40) + "5", want: 5 * time.Millisecond},
		{name: "the longest lifetime that can be measured", text: "9223372036854", want: longest},
		{name: "a millisecond more counts as that", text: "9223372036855", want: longest},
		{name: "2^63-1 counts as that", text: "9223372036854775807", want: longest},
		{name: "2^63", text: "9223372036854775808", fault: true},
		{name: "2^64+5", text: "18446744073709551621", fault: true},
		{name: "zero", text: "0", fault: true},
		{name: "many zeros", text: "000", fault: true},
		{name: "negative zero", text: "-0", fault: true},
		{name: "negative", text: "-1", fault: true},
		{name: "a plus sign", text: "+5", fault: true},
		{name: "a fraction", text: "1.5", fault: true},
		{name: "an exponent", text: "1e3", fault: true},
		{name: "hexadecimal", text: "0x10", fault: true},
		{name: "an underscore", text: "1_000", fault: true},
		{name: "a unit", text: "5ms", fault: true},
		{name: "a space before", text: " 5", fault: true},
		{name: "a space after", text: "5 ", fault: true},
		{name: "nothing", text: "", fault: true},
		{name: "digits of another script", text: "\u0665", fault: true},
		{name: "a NUL", text: "5\x00", fault: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command := Parse(Request{Payload: []byte(payload("SET", "k", "v", "PX", test.text))})
			if test.fault {
				wantErr(t, command, textSyntax)
				return
			}
			wantErr(t, command, "")
			if command.Lifetime != test.want {
				t.Errorf("got %v; want %v", command.Lifetime, test.want)
			}
		})
	}
}

func TestKeyNotifyOptions(t *testing.T) {
	tests := []struct {
		options string
		stop    bool
		fault   bool
	}{
		{options: "STOP", stop: true},
		{options: "stop", stop: true},
		{options: "GET"},
		{options: "get"},
		{options: "GET STOP", stop: true},
		{options: "STOP GET", stop: true},
		{options: "STOP STOP", fault: true},
		{options: "GET GET", fault: true},
		{options: "GET STOP GET", fault: true},
		{options: "START", fault: true},
		{options: "NX", fault: true},
		{options: "\u017ftop", fault: true}, // see TestWordsThatAreNotVerbs
		{options: " ", fault: true},
	}
	for _, test := range tests {
		t.Run(test.options, func(t *testing.T) {
			words := append([]string{"KEYNOTIFY", "k"}, strings.Split(test.options, " ")...)
			command := Parse(Request{Payload: []byte(payload(words...))})
			if test.fault {
				wantErr(t, command, textSyntax)
				return
			}
			wantErr(t, command, "")
			if command.Stop != test.stop {
				t.Errorf("Stop is %t; want %t", command.Stop, test.stop)
			}
		})
	}
}

func TestPayloadsThatAreNotWellFormed(t *testing.T) {
	for _, text := range []string{
		"", "*", "GET k\r\n", "*0\r\n", "*-1\r\n", "*1\r\n", "*2\r\n$3\r\nGET\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk",
		"*2\r\n$3\r\nGET\r\n$1\r\nk\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n", "*2\r\n$3\r\nGET\r\n$2\r\nk\r\n",
		"*2\r\n+GET\r\n$1\r\nk\r\n", "*2\r\n$3\r\nGET\r\n$-1\r\n", "*2\r\n$3\r\nGET\r\n:1\r\n",
		"*3\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*999999999999\r\n", "*2\r\n$3\r\nGET\r\n$9223372036854775807\r\nk\r\n",
	} {
		command := Parse(Request{Client: "c", Payload: []byte(text)})
		wantErr(t, command, textSyntax)
		if command.Verb != VerbUnknown || command.Client != "c" {
			t.Errorf("%q: the verb is %v, the client %q", text, command.Verb, command.Client)
		}
	}
}

// Invariant 44: nothing from the network allocates more than a constant times the
// bytes received.
func TestInvariant44ParseOfManyOptionsIsBounded(t *testing.T) {
	words := []string{"SET", "k", "v"}
	for range 1 << 15 {
		words = append(words, "NX")
	}
	text := []byte(payload(words...))
	wantErr(t, Parse(Request{Payload: text}), textSyntax)
	allocs := testing.AllocsPerRun(10, func() { Parse(Request{Payload: text}) })
	if allocs > 8 {
		t.Errorf("Parse of %d options allocates %v times", len(words), allocs)
	}
}
