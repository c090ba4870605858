package protocol

import (
	"testing"
)

// docs/protocol.md §2.4: the twelve texts, and the second spelling of one, spelled out.
func TestRefusalFor(t *testing.T) {
	tests := []struct {
		text string
		want Refusal
	}{
		{"the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized", TimestampTooFarAhead},
		{"a fencing token is required for this request", FencingTokenRequired},
		{"the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized", FencingTokenTooFarAhead},
		{"the request fencing token is a lower version than the fencing token protecting the resource", FencingTokenLower},
		{"the request fencing token is a lower version that the fencing token protecting the resource", FencingTokenLower},
		{"the quota has been exceeded", QuotaExceeded},
		{"syntax error", SyntaxError},
		{"not authorized", NotAuthorized},
		{"unknown command", UnknownCommand},
		{"wrong number of arguments", WrongNumberOfArguments},
		{"missing timestamp", MissingTimestamp},
		{"malformed timestamp", MalformedTimestamp},
		{"the key length is zero", KeyLengthZero},
		{"the request fencing token is above every version that this store has issued", FencingTokenNeverIssued},
		{"a key under a lock prefix needs an expiry (PX), a value that is the client id, a colon and a text without a colon, and no fencing token; release it with VDEL", LockRule},
		{"the request names another store", OtherStore},
		{"the key is too long to be watched: the topic of its notifications would have more than 65535 bytes", KeyTooLong},
	}
	distinct := make(map[Refusal]bool)
	for _, test := range tests {
		distinct[test.want] = true
		t.Run(test.text, func(t *testing.T) {
			// The reply as a client decodes it, in each form that stores send.
			for _, reply := range []string{"ERR " + test.text, "ERR: " + test.text, test.text} {
				if got := ErrorText(reply); got != test.text {
					t.Errorf("ErrorText(%q) = %q", reply, got)
				}
			}
			got, ok := RefusalFor(test.text)
			if !ok || got != test.want {
				t.Errorf("RefusalFor = %q, %t; want %q", got, ok, test.want)
			}
			for _, line := range []string{test.want.Line(), test.want.KeyNotifyLine()} {
				if back, ok := RefusalFor(ErrorText(line)); !ok || back != test.want {
					t.Errorf("%q is read as %q, %t", line, back, ok)
				}
			}
		})
	}
	if len(distinct) != 16 || len(refusals) != len(distinct) {
		t.Errorf("the table has %d refusals of %d; the protocol has 12, strict mode adds 2, the identity of the store 1, and the length of topics 1", len(distinct), len(refusals))
	}
}

func TestErrorText(t *testing.T) {
	for reply, want := range map[string]string{
		"ERR syntax error": "syntax error", "ERR: syntax error": "syntax error", "ERR ERR syntax error": "ERR syntax error", "ERR :-)": ":-)",
		"syntax error": "syntax error", "WRONGTYPE of value": "WRONGTYPE of value", "ERROR syntax": "ERROR syntax", "ERR ": "", "ERR": "ERR", "": "",
	} {
		if got := ErrorText(reply); got != want {
			t.Errorf("ErrorText(%q) = %q; want %q", reply, got, want)
		}
	}
	for _, text := range []string{"", "the moon is full", "Syntax error", "syntax error ", "ERR syntax error"} {
		if got, ok := RefusalFor(text); ok || got != "" {
			t.Errorf("RefusalFor(%q) = %q, %t", text, got, ok)
		}
	}
}
