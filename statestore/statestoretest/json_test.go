package statestoretest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/resp3"
)

var update = flag.Bool("update", false, "write docs/conformance.json")

// For programs in other languages the table is in docs too, without a language of its own. The test of
// server/integration reads it from there and has a client in Python run it.
func TestTheTableInDocsIsThatOfTheTests(t *testing.T) {
	const path = "../../docs/conformance.json"
	rows, err := loadRows()
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("{\n\"about\": [\n" + lines(t, about) + "\n],\n\"rows\": [")
	for i, r := range rows {
		var steps []documentedStep
		for i, s := range r.steps {
			if s.kind == stepRequest || s.kind == stepPass || s.kind == stepDrop {
				steps = append(steps, documented(t, s, r.steps[i+1:]))
			}
		}
		text = append(text, strings.Repeat(",", min(i, 1))+"\n{\"section\": "+line(t, r.section)+",\n\"sentence\": "+
			line(t, r.sentence)+",\n\"options\": "+line(t, options(r))+",\n\"steps\": [\n"+lines(t, steps)+"\n]}"...)
	}
	text = append(text, "\n]}\n"...)
	if *update {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if written, err := os.ReadFile(path); err != nil || !bytes.Equal(written, text) {
		t.Errorf("%s is not what the rows say (%v): go test ./statestore/statestoretest -update", path, err)
	}
}

// A line for each element makes a change of the table a change of few lines.
func lines[T any](t *testing.T, list []T) string {
	var all []string
	for _, element := range list {
		all = append(all, line(t, element))
	}
	return strings.Join(all, ",\n")
}

func line(t *testing.T, value any) string {
	t.Helper()
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(text.String(), "\n")
}

var about = []string{
	"The rules of docs/protocol.md, each with a script that a store must follow: go test ./statestore/statestoretest -update writes it.",
	"docs/conformance.py is a client that runs it. Each row wants an empty store with these options (fields of statestore.Options).",
	"Payloads, keys and words are bytes: each character is the byte of that number, as in ISO 8859-1.",
	"A step with a client is a request. It has the words of an array, or else the whole payload; the reply; and the notifications that",
	"have come to each client when the step is over, in order, and no others. A client connects when it is first named.",
	"__ts and __ft are the user properties: a text; the version that was given a name; or wall:counter:node, with the time of day when the",
	"row began, or after the last pass, and ahead_ms for the wall clock. Where there is none, the property is not sent.",
	"Each request has __protVer 1.0 unless it is published. Correlation data that a row does not give is new for each request. denied: the",
	"store must not authorize this client. again: the request before with this correlation data is delivered again, in the same session.",
	"drop ends the connection of a client as a network failure does, and not its session. pass_ms is a time to wait.",
	"The version of a reply or notification is its __ts: none; any; now, the time of day with the counter 0; a name, which the first such",
	"version gets and later ones equal; above one that has a name; or ahead_ms and a counter. Where it is not given, it does not matter.",
}

// options returns the fields that a row has set.
func options(r row) map[string]any {
	set := make(map[string]any)
	for value, i := reflect.ValueOf(r.options), 0; i < value.NumField(); i++ {
		if !value.Field(i).IsZero() {
			set[value.Type().Field(i).Name] = value.Field(i).Interface()
		}
	}
	return set
}

type (
	documentedStep struct {
		Pass          int64          `json:"pass_ms,omitempty"`
		Drop          string         `json:"drop,omitempty"`
		Client        string         `json:"client,omitempty"`
		Words         []string       `json:"words,omitempty"`
		Payload       *string        `json:"payload,omitempty"`
		Timestamp     document       `json:"__ts,omitempty"`
		FencingToken  document       `json:"__ft,omitempty"`
		Correlation   string         `json:"correlation,omitempty"`
		Store         string         `json:"store,omitempty"`
		Denied        bool           `json:"denied,omitempty"`
		Again         bool           `json:"again,omitempty"`
		Published     bool           `json:"published,omitempty"`
		Reply         *reply         `json:"reply,omitempty"`
		Notifications []notification `json:"notifications,omitempty"`
	}
	reply struct {
		Payload string   `json:"payload"`
		Version document `json:"version,omitempty"`
	}
	notification struct {
		Client  string   `json:"client"`
		Key     string   `json:"key"`
		Words   []string `json:"words"`
		Version document `json:"version,omitempty"`
	}
	document map[string]any
)

// documented returns a step and what must follow it.
func documented(t *testing.T, s step, rest []step) documentedStep {
	t.Helper()
	if s.kind == stepDrop {
		return documentedStep{Drop: s.client}
	}
	d := documentedStep{
		Pass: s.pass.Milliseconds(), Client: s.client, Correlation: s.corr, Store: s.store,
		Denied: s.denied, Again: s.again, Published: s.published,
	}
	if s.kind == stepRequest {
		if d.Words = allCharacters(s.words); s.raw {
			text := characters(s.words[0])
			d.Words, d.Payload = nil, &text
		} else if s.ts == "" && strings.EqualFold(s.words[0], "SET") {
			s.ts = "+0s:0:" + s.client // as a player does
		}
		d.Timestamp, d.FencingToken = documentedStamp(t, s.ts), documentedStamp(t, s.ft)
		if len(rest) == 0 || rest[0].kind != stepReply {
			t.Fatalf("no reply follows %q", s.text)
		}
		d.Reply = &reply{characters(payloadOf(t, strings.Join(rest[0].words, " "))), documentedVersion(t, rest[0].version)}
		rest = rest[1:]
	}
	for _, n := range notificationsAfter(rest) {
		words := append([]string{"NOTIFY"}, allCharacters(n.words[1:])...)
		d.Notifications = append(d.Notifications, notification{n.client, characters(n.words[0]), words, documentedVersion(t, n.version)})
	}
	return d
}

func documentedStamp(t *testing.T, written string) document {
	t.Helper()
	if written == "" || written == "none" {
		return nil
	}
	switch written[0] {
	case '"':
		text, err := strconv.Unquote(written)
		if err != nil {
			t.Fatal(err)
		}
		return document{"text": text}
	case '@':
		return document{"named": written[1:]}
	}
	return relative(t, written)
}

// relative returns +30s:5:CLIENT, or +30s:5, in its parts.
func relative(t *testing.T, written string) document {
	t.Helper()
	parts := strings.SplitN(written, ":", 3)
	ahead, err := time.ParseDuration(parts[0])
	counter, notANumber := strconv.Atoi(parts[1])
	if err != nil || notANumber != nil {
		t.Fatalf("%q: %v, %v", written, err, notANumber)
	}
	d := document{"ahead_ms": ahead.Milliseconds(), "counter": counter}
	if len(parts) == 3 {
		d["node"] = parts[2]
	}
	return d
}

func documentedVersion(t *testing.T, written string) document {
	t.Helper()
	switch {
	case written == "":
		return nil
	case written == "-", written == "*", written == "now":
		return document{map[string]string{"-": "none", "*": "any", "now": "now"}[written]: true}
	case written[0] == '>':
		return document{"above": written[1:]}
	case written[0] == '+':
		return relative(t, written)
	}
	return document{"named": written}
}

// payloadOf returns the reply that replyText writes so.
func payloadOf(t *testing.T, text string) string {
	t.Helper()
	payload := text + "\r\n"
	if value, bulk := strings.CutPrefix(text, "$ "); bulk {
		payload = string(resp3.AppendBulk(nil, []byte(value)))
	} else if unquoted, err := strconv.Unquote(text); err == nil {
		payload = unquoted
	}
	if got := replyText([]byte(payload)); got != text {
		t.Fatalf("a reply %q reads %q", text, got)
	}
	return payload
}

// characters returns bytes as the characters of these numbers: JSON has no bytes.
func characters(text string) string {
	runes := make([]rune, len(text))
	for i := range len(text) {
		runes[i] = rune(text[i])
	}
	return string(runes)
}

func allCharacters(words []string) (all []string) {
	for _, w := range words {
		all = append(all, characters(w))
	}
	return all
}
