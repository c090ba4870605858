package fencing_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

// carrier is a way to send a token. put returns all texts of the header or property afterwards; take parses such texts.
type carrier struct {
	name string
	put  func(hlc.Token) (texts []string, err error)
	take func(texts []string) (hlc.Token, error)
}

var carriers = []carrier{
	{"header", func(token hlc.Token) ([]string, error) {
		header := http.Header{"Fencing-Token": {"what was there before", "and more of it"}, "Other": {"stays"}}
		err := fencing.SetHeader(header, token)
		if header.Get("Other") != "stays" || err != nil && len(header.Values("Fencing-Token")) != 2 {
			return nil, errors.New("another field is gone, or an error changed this one")
		}
		return header.Values("Fencing-Token"), err
	}, func(texts []string) (hlc.Token, error) {
		return fencing.TokenFromHeader(http.Header{"Fencing-Token": texts, "Other": {"x"}})
	}},
	{"user property", func(token hlc.Token) ([]string, error) {
		name, value, err := fencing.UserProperty(token)
		var properties paho.UserProperties
		properties.Add("other", "stays").Add(name, value)
		return properties.GetAll("__ft"), err
	}, fencing.TokenFromUserProperties},
	{"sortable text", func(token hlc.Token) ([]string, error) {
		text, err := fencing.SortableText(token)
		return []string{text}, err
	}, fencing.TokenFromUserProperties},
}

func TestATokenArrivesAsItWasSentOrIsNotSent(t *testing.T) {
	for _, test := range []struct {
		token  hlc.Token
		want   error
		header bool // the error concerns the header only
	}{
		{at(1696374425000), nil, false},
		{hlc.Token{Node: "n"}, nil, false},
		{hlc.Token{Wall: math.MaxInt64, Counter: math.MaxUint64, Node: "!~"}, nil, false},
		{hlc.Token{Wall: 1, Counter: 2, Node: strings.Repeat("n", 983)}, nil, false},
		{hlc.Token{}, fencing.ErrMissingToken, false},
		{hlc.Token{Wall: 1}, hlc.ErrMalformed, false},
		{hlc.Token{Wall: -1, Node: "n"}, hlc.ErrMalformed, false},
		{hlc.Token{Wall: 1, Node: "n\r\nSet-Cookie"}, hlc.ErrMalformed, false},
		{hlc.Token{Wall: 1, Node: "n "}, hlc.ErrMalformed, true}, // would be trimmed
		{hlc.Token{Wall: 1, Node: "a,b"}, hlc.ErrMalformed, true},
		{hlc.Token{Wall: 1, Node: "ü"}, hlc.ErrMalformed, true},
	} {
		for _, carrier := range carriers {
			want := test.want
			if test.header && carrier.name != "header" {
				want = nil
			}
			texts, err := carrier.put(test.token)
			if !errors.Is(err, want) {
				t.Errorf("%s: put %q: %q, %v; want %v", carrier.name, test.token, texts, err, want)
			}
			if err != nil {
				continue
			}
			if got, err := carrier.take(texts); err != nil || got != test.token {
				t.Errorf("%s: %v came as %v, %v", carrier.name, test.token, got, err)
			}
		}
	}
}

// causes are the reasons why parsing a token can fail: no error matches two.
var causes = []error{fencing.ErrMissingToken, fencing.ErrRepeatedToken, hlc.ErrMalformed}

func TestMissingRepeatedAndMalformedTokensHaveDifferentErrors(t *testing.T) {
	for _, test := range []struct {
		texts  []string
		want   error
		header bool // concerns the header only
	}{
		{nil, fencing.ErrMissingToken, false},
		{[]string{"1:0:n", "2:0:n"}, fencing.ErrRepeatedToken, false},
		{[]string{"1:0:n", "1:0:n"}, fencing.ErrRepeatedToken, false},
		{[]string{"1:0:n", ""}, fencing.ErrRepeatedToken, false},
		{[]string{"1:0:n, 2:0:n"}, fencing.ErrRepeatedToken, true}, // that a proxy joined
		{[]string{""}, hlc.ErrMalformed, false},
		{[]string{"-1:0:n"}, hlc.ErrMalformed, false},
		{[]string{" 1:0:n"}, hlc.ErrMalformed, false},
		{[]string{"1:0:\u00fc"}, hlc.ErrMalformed, true}, // it may have changed
		{[]string{"1:0:" + strings.Repeat("n", 1024)}, hlc.ErrMalformed, false},
		{[]string{"001696374425000:00000:StateStore"}, nil, false},
	} {
		for _, carrier := range carriers {
			if test.header && carrier.name != "header" {
				continue
			}
			token, err := carrier.take(test.texts)
			if token.IsZero() != (test.want != nil) {
				t.Errorf("%s: %q: it came with the token %v", carrier.name, test.texts, token)
			}
			for _, cause := range causes {
				if errors.Is(err, cause) != (cause == test.want) {
					t.Errorf("%s: %q: %v, want %v alone", carrier.name, test.texts, err, test.want)
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
			if matched != 1 || !token.IsZero() || len(err.Error()) > 500 {
				t.Fatalf("%q: %v matches %d causes; token %v", texts, err, matched, token)
			}
			return
		}
		again, err := carrier.put(token)
		if back, readErr := carrier.take(again); err != nil || readErr != nil || back != token || len(texts) != 1 {
			t.Fatalf("%q: %v came back as %v, %v, %v", texts, token, back, err, readErr)
		}
	})
}

func FuzzTokenFromHeader(f *testing.F) { fuzzCarrier(f, carriers[0]) }

func FuzzTokenFromUserProperties(f *testing.F) { fuzzCarrier(f, carriers[1]) }

// agree checks that the sortable texts of two tokens are in their order.
func agree(t *testing.T, a, b hlc.Token) {
	t.Helper()
	textA, err := fencing.SortableText(a)
	textB, errB := fencing.SortableText(b)
	if got, want := strings.Compare(textA, textB), a.Compare(b); got != want || err != nil || errB != nil {
		t.Errorf("%v and %v compare as %d, their texts %q and %q as %d, %v, %v", a, b, want, textA, textB, got, err, errB)
	}
	if back, err := hlc.ParseToken(textA); err != nil || back != a || len(textA) != 41+len(a.Node) {
		t.Errorf("%q parses back as %v, %v", textA, back, err)
	}
}

func TestInvariant16TheOrderOfSortableTextsIsThatOfTheTokens(t *testing.T) {
	walls := []int64{0, 1, 9, 10, 99, 100, 1696374425000, math.MaxInt64}
	counters := []uint64{0, 1, 9, 10, 11, 100000, math.MaxUint64}
	nodes := []string{"a", "b", "aa", "a!", "a~", "A", "Z", "ü", "9", "10", " "}
	token := func() hlc.Token {
		return hlc.Token{Wall: walls[rand.N(len(walls))], Counter: counters[rand.N(len(counters))], Node: nodes[rand.N(len(nodes))]}
	}
	for range 20_000 {
		agree(t, token(), token())
		agree(t, hlc.Token{Wall: rand.Int64() >> rand.N(63), Counter: rand.Uint64() >> rand.N(64), Node: "n"}, token())
	}
}
