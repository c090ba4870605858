package fencing_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

// carrier is a way to send a token. put sets a token and returns all texts of the header or
// property afterwards; take parses such texts.
type carrier struct {
	name string
	put  func(hlc.Token) (texts []string, err error)
	take func(texts []string) (hlc.Token, error)

	unset []string // the texts after a put that failed
}

var carriers = []carrier{
	{"header",
		func(token hlc.Token) ([]string, error) {
			header := http.Header{}
			header.Add("fencing-token", "what was there before")
			header.Add("fencing-token", "and more of it")
			header.Set("Other", "stays")
			err := fencing.SetHeader(header, token)
			if header.Get("Other") != "stays" {
				return nil, errors.New("another field is gone")
			}
			return header.Values("Fencing-Token"), err
		},
		func(texts []string) (hlc.Token, error) {
			return fencing.TokenFromHeader(http.Header{"Fencing-Token": texts, "Other": {"x"}})
		},
		[]string{"what was there before", "and more of it"}},
	{"user property",
		func(token hlc.Token) ([]string, error) {
			name, value, err := fencing.UserProperty(token)
			if err != nil && (name != "" || value != "") {
				return nil, fmt.Errorf("it returned %q, %q with %v", name, value, err)
			}
			var properties paho.UserProperties
			properties.Add("other", "stays").Add(name, value)
			return properties.GetAll("__ft"), err
		},
		func(texts []string) (hlc.Token, error) {
			properties := paho.UserProperties{{Key: "other", Value: "x"}}
			for _, text := range texts {
				properties.Add("__ft", text)
			}
			return fencing.TokenFromUserProperties(properties.GetAll(fencing.UserPropertyName))
		},
		nil},
}

func TestATokenArrivesAsItWasSent(t *testing.T) {
	for _, carrier := range carriers {
		for _, token := range []hlc.Token{
			at(1696374425000),
			{Wall: 0, Counter: 0, Node: "n"},
			{Wall: math.MaxInt64, Counter: math.MaxUint64, Node: "!~"},
			{Wall: 1, Counter: 2, Node: strings.Repeat("n", 983)},
		} {
			texts, err := carrier.put(token)
			if err != nil || len(texts) != 1 {
				t.Errorf("%s: put %v: %q, %v", carrier.name, token, texts, err)
				continue
			}
			if got, err := carrier.take(texts); err != nil || got != token {
				t.Errorf("%s: %v came as %v, %v", carrier.name, token, got, err)
			}
		}
	}
}

func TestAnInvalidTokenIsNotSent(t *testing.T) {
	for _, test := range []struct {
		token  hlc.Token
		want   error
		header bool // concerns the header only
	}{
		{hlc.Token{}, fencing.ErrMissingToken, false},
		{hlc.Token{Wall: 1}, hlc.ErrMalformed, false},
		{hlc.Token{Wall: -1, Node: "n"}, hlc.ErrMalformed, false},
		{hlc.Token{Wall: 1, Node: "n\r\nSet-Cookie"}, hlc.ErrMalformed, false},
		{hlc.Token{Wall: 1, Node: "n "}, hlc.ErrMalformed, true}, // would be trimmed
		{hlc.Token{Wall: 1, Node: "a,b"}, hlc.ErrMalformed, true},
		{hlc.Token{Wall: 1, Node: "ü"}, hlc.ErrMalformed, true},
	} {
		for _, carrier := range carriers {
			texts, err := carrier.put(test.token)
			if test.header && carrier.name != "header" {
				if err != nil {
					t.Errorf("%s: %q: %v", carrier.name, test.token, err)
				}
				continue
			}
			if !errors.Is(err, test.want) || !slices.Equal(texts, carrier.unset) {
				t.Errorf("%s: %q: %v, want %v; now there is %q", carrier.name, test.token, err, test.want, texts)
			}
		}
	}
}

// causes are the reasons why parsing a token can fail: no error matches two.
var causes = []error{fencing.ErrMissingToken, fencing.ErrRepeatedToken, hlc.ErrMalformed}

func TestMissingRepeatedAndMalformedTokensHaveDifferentErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		texts  []string
		want   error
		header bool // concerns the header only
	}{
		{"none", nil, fencing.ErrMissingToken, false},
		{"two", []string{"1:0:n", "2:0:n"}, fencing.ErrRepeatedToken, false},
		{"two that are equal", []string{"1:0:n", "1:0:n"}, fencing.ErrRepeatedToken, false},
		{"two, one of which is nothing", []string{"1:0:n", ""}, fencing.ErrRepeatedToken, false},
		{"two that a proxy joined", []string{"1:0:n, 2:0:n"}, fencing.ErrRepeatedToken, true},
		{"an empty one", []string{""}, hlc.ErrMalformed, false},
		{"one without a node", []string{"1:0:"}, hlc.ErrMalformed, false},
		{"one with a sign", []string{"-1:0:n"}, hlc.ErrMalformed, false},
		{"one with space around it", []string{" 1:0:n"}, hlc.ErrMalformed, false},
		{"one with a node that may have changed", []string{"1:0:\u00fc"}, hlc.ErrMalformed, true},
		{"one that is too long", []string{"1:0:" + strings.Repeat("n", 1024)}, hlc.ErrMalformed, false},
	} {
		for _, carrier := range carriers {
			if test.header && carrier.name != "header" {
				continue
			}
			token, err := carrier.take(test.texts)
			if !token.IsZero() {
				t.Errorf("%s: %s: it came with the token %v", carrier.name, test.name, token)
			}
			for _, cause := range causes {
				if errors.Is(err, cause) != (cause == test.want) {
					t.Errorf("%s: %s: %v, want %v alone", carrier.name, test.name, err, test.want)
				}
			}
		}
	}
}

// fuzzCarrier gives a carrier up to two texts.
func fuzzCarrier(f *testing.F, carrier carrier) {
	f.Fuzz(func(t *testing.T, of uint8, first, second string) {
		texts := []string{first, second}[:of%3]
		token, err := carrier.take(texts)
		if err != nil {
			matched := 0
			for _, cause := range causes {
				if errors.Is(err, cause) {
					matched++
				}
			}
			if matched != 1 || !token.IsZero() {
				t.Fatalf("%q: %v matches %d causes; token %v", texts, err, matched, token)
			}
			if len(err.Error()) > 500 {
				t.Errorf("an error of %d bytes for a stranger's text", len(err.Error()))
			}
			return
		}
		if len(texts) != 1 {
			t.Fatalf("%q: read as %v", texts, token)
		}
		again, err := carrier.put(token)
		if err != nil {
			t.Fatalf("%q was read as %v, which cannot be sent: %v", texts, token, err)
		}
		if back, err := carrier.take(again); err != nil || back != token {
			t.Fatalf("%v came back as %v, %v", token, back, err)
		}
	})
}

func FuzzTokenFromHeader(f *testing.F) { fuzzCarrier(f, carriers[0]) }

func FuzzTokenFromUserProperties(f *testing.F) { fuzzCarrier(f, carriers[1]) }
