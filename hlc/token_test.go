package hlc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/hlc"
)

func TestATokenHasTheTextAndTheOrderOfItsTimestamp(t *testing.T) {
	lower := hlc.Timestamp{Wall: 9, Counter: 10, Node: "b"}
	higher := hlc.Timestamp{Wall: 10, Counter: 2, Node: "a"}
	for _, timestamp := range []hlc.Timestamp{{}, lower, higher, {Wall: -1, Node: "n"}, {Wall: 1, Node: "a:b"}} {
		token := hlc.Token(timestamp)
		if token.String() != timestamp.String() {
			t.Errorf("String = %q; want %q", token, timestamp)
		}
		text, err := token.MarshalText()
		wanted, wantedErr := timestamp.MarshalText()
		if string(text) != string(wanted) || errors.Is(err, hlc.ErrMalformed) != errors.Is(wantedErr, hlc.ErrMalformed) {
			t.Errorf("MarshalText = %q, %v; want %q, %v", text, err, wanted, wantedErr)
		}
		parsed, err := hlc.ParseToken(token.String())
		if wanted, wantedErr := hlc.Parse(timestamp.String()); parsed != hlc.Token(wanted) || (err == nil) != (wantedErr == nil) {
			t.Errorf("ParseToken(%q) = %v, %v; want %v, %v", token, parsed, err, wanted, wantedErr)
		}
		if token.IsZero() != timestamp.IsZero() {
			t.Errorf("IsZero of %v = %t", token, token.IsZero())
		}
		for _, other := range []hlc.Timestamp{{}, lower, higher} {
			if got, want := token.Compare(hlc.Token(other)), timestamp.Compare(other); got != want {
				t.Errorf("Compare(%v, %v) = %d; want %d", token, other, got, want)
			}
		}
	}
}

func TestLogsAndJSONShowATokenAsText(t *testing.T) {
	token := hlc.Token{Wall: 1696374425000, Counter: 7, Node: "StateStore"}
	const text = `"1696374425000:7:StateStore"`

	encoded, err := json.Marshal(token)
	if err != nil || string(encoded) != text {
		t.Errorf("json.Marshal = %s, %v; want %s", encoded, err, text)
	}
	var decoded hlc.Token
	if err := json.Unmarshal(encoded, &decoded); err != nil || decoded != token {
		t.Errorf("json.Unmarshal = %v, %v; want %v", decoded, err, token)
	}
	if err := json.Unmarshal([]byte(`"1:2"`), &decoded); !errors.Is(err, hlc.ErrMalformed) || decoded != token {
		t.Errorf("json.Unmarshal of a malformed text = %v, and the token %v; want ErrMalformed, and the token as it was", err, decoded)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("leading", "token", token, "version", hlc.Timestamp(token))
	for _, want := range []string{`"token":` + text, `"version":` + text} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("slog wrote %s; want %s in it", log.String(), want)
		}
	}
}
