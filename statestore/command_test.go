package statestore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/protocol"
)

// parsed shows a command, or why it is refused. The words of a line are separated by single spaces.
func parsed(line string) string {
	c := Parse(Request{Payload: []byte(payload(strings.Split(line, " ")...))})
	if c.Err() != nil {
		return c.Err().Error()
	}
	text := fmt.Sprintf("%v %s=%s", c.Verb, c.Key, c.Value)
	switch c.Condition {
	case IfMissing:
		text += " NX"
	case IfMissingOrEqual:
		text += fmt.Sprintf(" NEX %s", c.Expected)
	}
	if c.Lifetime > 0 {
		text += fmt.Sprint(" PX ", c.Lifetime)
	}
	if c.Stop {
		text += " STOP"
	}
	return text
}

// docs/protocol.md §2.2: verbs, options and PX, which must be a positive integer.
func TestParse(t *testing.T) {
	const longest = " PX 2562047h47m16.854s" // 292 years, the longest Duration in milliseconds
	zeros := strings.Repeat("0", 40)
	for want, lines := range map[string][]string{
		"SET k=v":                      {"SET k v", "set k v", "sEt k v"},
		"GET k=":                       {"GET k", "get k"},
		"DEL k=":                       {"DEL k", "del k"},
		"VDEL k=v":                     {"VDEL k v", "vdel k v"},
		"KEYNOTIFY k=":                 {"KEYNOTIFY k", "KeyNotify k", "KEYNOTIFY k GET", "KEYNOTIFY k get"},
		"KEYNOTIFY k= STOP":            {"KEYNOTIFY k STOP", "KEYNOTIFY k stop", "KEYNOTIFY k GET STOP", "KEYNOTIFY k STOP GET"},
		"SET k=v NX":                   {"SET k v NX"},
		"SET k=v NEX v":                {"SET k v NEX"},
		"SET k=v NEX w":                {"SET k v NEX w"},
		"SET k=v NX PX 250ms":          {"SET k v nX Px 250", "SET k v PX 250 NX"},
		"SET k=v NEX v PX 7ms":         {"SET k v NEX PX 7", "SET k v PX 7 NEX"},
		"SET k=v NEX w PX 7ms":         {"SET k v NEX w PX 7", "SET k v PX 7 NEX w"},
		"SET k=v PX 5ms":               {"SET k v PX 0005", "SET k v PX " + zeros + "5"},
		"SET k=v" + longest:            {"SET k v PX 9223372036854", "SET k v PX 9223372036855", "SET k v PX 9223372036854775807"},
		protocol.KeyLengthZero.Error(): {"GET ", "SET  v", "KEYNOTIFY  BOGUS"},
		textUnknown: {
			"", "SE k v", "SETT k v", "SET\x00 k v", "INCR k", "NOTIFY k", "STOP k", "NX k", "\u017fet k v", // whose upper case is SET
			"\xff\xff\xff k v", strings.Repeat("SET", 1<<16) + " k v",
		},
		textArguments: {"SET", "SET k", "GET", "GET k v", "GET  v", "DEL", "DEL k v", "VDEL", "VDEL k", "VDEL k v w", "KEYNOTIFY"},
		textSyntax: {
			"SET k v NX NX", "SET k v NEX NEX", "SET k v NX NEX", "SET k v NEX NX", "SET k v NX PX 5 NEX", "SET k v PX 5 PX 5",
			"SET k v PX 5 NX PX 6", "SET k v PX", "SET k v PX NX", "SET k v 5", "SET k v XX", "SET k v NX PX 5 GET", "SET k v NXX",
			"SET k v STOP", "SET k v EX 5", "SET k v  NX", "SET k v NEX w x", "SET k v NEX PX", "SET k v NX w",
			"SET k v PX 9223372036854775808", "SET k v PX 18446744073709551621", "SET k v PX 0", "SET k v PX 000", "SET k v PX -0",
			"SET k v PX -1", "SET k v PX +5", "SET k v PX 1.5", "SET k v PX 1e3", "SET k v PX 0x10", "SET k v PX 1_000", "SET k v PX 5ms",
			"SET k v PX ", "SET k v PX \u0665", "SET k v PX 5\x00",
			"KEYNOTIFY k k2", "KEYNOTIFY k STOP STOP", "KEYNOTIFY k GET GET", "KEYNOTIFY k GET STOP GET", "KEYNOTIFY k NX",
			"KEYNOTIFY k \u017ftop", "KEYNOTIFY k ",
		},
	} {
		for _, line := range lines {
			if got := parsed(line); got != want {
				t.Errorf("%.50q is parsed as %q; want %q", line, got, want)
			}
		}
	}
}

func TestPayloadsThatAreNotWellFormed(t *testing.T) {
	for _, text := range []string{
		"", "*", "GET k\r\n", "*0\r\n", "*-1\r\n", "*1\r\n", "*2\r\n$3\r\nGET\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk",
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n", "*2\r\n+GET\r\n$1\r\nk\r\n", "*2\r\n$3\r\nGET\r\n$-1\r\n", "*999999999999\r\n",
	} {
		command := Parse(Request{Client: "c", Payload: []byte(text)})
		if command.Err() != protocol.SyntaxError || command.Verb != VerbUnknown || command.Client != "c" {
			t.Errorf("%q: %v; the verb is %v, the client %q", text, command.Err(), command.Verb, command.Client)
		}
	}
}

// Invariant 44: nothing from the network allocates more than a constant times the
// bytes received.
func TestInvariant44ParseOfManyOptionsIsBounded(t *testing.T) {
	text := []byte(payload(append([]string{"SET", "k", "v"}, strings.Split(strings.Repeat("NX ", 1<<15), " ")...)...))
	if allocs := testing.AllocsPerRun(10, func() { Parse(Request{Payload: text}) }); allocs > 8 {
		t.Errorf("Parse of many options allocates %v times", allocs)
	}
}
