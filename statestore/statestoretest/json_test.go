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

// about is for readers who do not know the language of the rows.
const about = `Scripts that a store must follow, one for each rule of docs/protocol.md; docs/conformance.py is a client that runs them.
Each row begins with an empty store that has its options: fields of statestore.Options.
A step with a client is a request: an array of words or a whole payload, and its reply.
Words, keys and payloads are bytes: each character has the number of its byte, as in ISO 8859-1.
A client connects when it is named first; drop ends its connection as a network failure does, and not its session.
__ts and __ft are sent as they are, but @name is the version with that name, and +1000:0:a is 1000 ms after the row began.
After a pass, a wait, the end of the wait counts as the beginning.
What is not given is not sent, but __protVer is 1.0 unless the request is published, and correlation data is new for each request.
denied: the store must not authorize this client; store: the user property tenure-store.
again: the request with this correlation data is delivered again, in the same session.
version is the __ts of a reply or notification: none, any, now (the time of day and 0), +1000:6, @name or >@name (greater).
The first version with a name gets it; where none is given, each will do.
notifications are all that came until the step was over, for each client in order.`

type (
	documentedRow struct {
		Section  string           `json:"section"`
		Sentence string           `json:"sentence"`
		Options  map[string]any   `json:"options"`
		Steps    []documentedStep `json:"steps"`
	}
	documentedStep struct {
		Pass          int64          `json:"pass_ms,omitempty"`
		Drop          string         `json:"drop,omitempty"`
		Client        string         `json:"client,omitempty"`
		Words         []string       `json:"words,omitempty"`
		Payload       *string        `json:"payload,omitempty"`
		Timestamp     *string        `json:"__ts,omitempty"`
		FencingToken  *string        `json:"__ft,omitempty"`
		Correlation   string         `json:"correlation,omitempty"`
		Store         string         `json:"store,omitempty"`
		Denied        bool           `json:"denied,omitempty"`
		Again         bool           `json:"again,omitempty"`
		Published     bool           `json:"published,omitempty"`
		Reply         string         `json:"reply,omitempty"`
		Version       string         `json:"version,omitempty"`
		Notifications []notification `json:"notifications,omitempty"`
	}
	notification struct {
		Client  string   `json:"client"`
		Key     string   `json:"key"`
		Words   []string `json:"words"`
		Version string   `json:"version,omitempty"`
	}
)

// For programs in other languages docs have the table, too. A test of server/integration has a client in Python run it.
func TestDocsHaveTheTable(t *testing.T) {
	const path = "../../docs/conformance.json"
	rows, err := loadRows()
	if err != nil {
		t.Fatal(err)
	}
	var documented []documentedRow
	for _, r := range rows {
		d := documentedRow{Section: r.section, Sentence: r.sentence, Options: make(map[string]any)}
		for options, i := reflect.ValueOf(r.options), 0; i < options.NumField(); i++ {
			if !options.Field(i).IsZero() {
				d.Options[options.Type().Field(i).Name] = options.Field(i).Interface()
			}
		}
		for i, s := range r.steps {
			if s.kind == stepRequest || s.kind == stepPass || s.kind == stepDrop {
				d.Steps = append(d.Steps, document(s, r.steps[i+1:]))
			}
		}
		documented = append(documented, d)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]any{"about": strings.Split(about, "\n"), "rows": documented}); err != nil {
		t.Fatal(err)
	}
	// With a line for each step, a change of a few steps is one of a few lines.
	lines := strings.NewReplacer(`{"`, "\n{\"", `.","`, ".\",\n\"", `","`, `", "`).Replace(text.String())[1:]
	if *update {
		if err := os.WriteFile(path, []byte(lines), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if written, err := os.ReadFile(path); err != nil || string(written) != lines {
		t.Errorf("%s is not the table (%v): go test ./statestore/statestoretest -update", path, err)
	}
}

// document returns a step with what must follow it.
func document(s step, rest []step) documentedStep {
	if s.kind == stepDrop {
		return documentedStep{Drop: s.client}
	}
	d := documentedStep{
		Pass: s.pass.Milliseconds(), Client: s.client, Correlation: s.corr, Store: s.store,
		Denied: s.denied, Again: s.again, Published: s.published,
	}
	if s.kind == stepRequest {
		if d.Words = characters(s.words...); s.raw {
			d.Words, d.Payload = nil, &d.Words[0]
		} else if s.ts == "" && strings.EqualFold(s.words[0], "SET") {
			s.ts = "+0s:0:" + s.client // as a player does
		}
		d.Timestamp, d.FencingToken = documentStamp(s.ts), documentStamp(s.ft)
		d.Reply, d.Version = characters(payloadOf(strings.Join(rest[0].words, " ")))[0], documentVersion(rest[0].version)
		rest = rest[1:]
	}
	for _, n := range notificationsAfter(rest) {
		words := characters(append([]string{"NOTIFY"}, n.words[1:]...)...)
		d.Notifications = append(d.Notifications, notification{n.client, characters(n.words[0])[0], words, documentVersion(n.version)})
	}
	return d
}

func documentStamp(written string) *string {
	text, err := strconv.Unquote(written)
	switch {
	case written == "" || written == "none":
		return nil
	case written[0] == '@':
		text = written
	case err != nil:
		text = relative(written)
	}
	return &text
}

func documentVersion(written string) string {
	switch {
	case written == "" || written == "now":
		return written
	case written == "-":
		return "none"
	case written == "*":
		return "any"
	case written[0] == '+':
		return relative(written)
	case written[0] == '>':
		return ">@" + written[1:]
	}
	return "@" + written
}

// relative returns +30s:5 as +30000:5. The text after + may have a sign.
func relative(written string) string {
	ahead, rest, _ := strings.Cut(written, ":")
	d, _ := time.ParseDuration(ahead) // each test that plays the rows knows that it is one
	return "+" + strconv.FormatInt(d.Milliseconds(), 10) + ":" + rest
}

// payloadOf returns the reply that replyText writes so.
func payloadOf(text string) string {
	if value, isBulk := strings.CutPrefix(text, "$ "); isBulk {
		return string(resp3.AppendBulk(nil, value))
	}
	if unquoted, err := strconv.Unquote(text); err == nil {
		return unquoted
	}
	return text + "\r\n"
}

// characters returns each byte as the character of this number: JSON has no bytes.
func characters(words ...string) (all []string) {
	for _, word := range words {
		var text []rune
		for _, b := range []byte(word) {
			text = append(text, rune(b))
		}
		all = append(all, string(text))
	}
	return all
}
