package statestoretest

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

//go:embed conformance.json
var table []byte

// row is one rule of the protocol. The beginning of the table says what the fields mean.
type row struct {
	Section, Sentence string // of docs/protocol.md
	Options           struct {
		statestore.Options
		Dialect string
	}
	Steps []step
}

type step struct {
	Pass          int64    `json:"pass_ms"`
	Drop          string   `json:"drop"`
	Client        string   `json:"client"`
	Words         []string `json:"words"`
	Payload       string   `json:"payload"`
	Timestamp     *string  `json:"__ts"`
	FencingToken  *string  `json:"__ft"`
	Correlation   string   `json:"correlation"`
	Store         string   `json:"store"`
	Denied        bool     `json:"denied"`
	Again         bool     `json:"again"`
	Published     bool     `json:"published"`
	Reply         string   `json:"reply"`
	Version       string   `json:"version"`
	Notifications []struct {
		Client, Key, Version string
		Words                []string
	} `json:"notifications"`
}

// Run runs each row of the table as a subtest. For each row it calls with, which makes a new
// store with the options and calls check once with it; with may do so in a testing/synctest
// bubble. Run skips rows whose requests the clients of the store cannot send.
func Run(t *testing.T, with func(t *testing.T, options statestore.Options, check func(*testing.T, Store))) {
	t.Helper()
	var rows struct{ Rows []row }
	if err := json.Unmarshal(table, &rows); err != nil {
		t.Fatal(err)
	}
	dialects := map[string]statestore.Dialect{"deployed": statestore.Deployed, "documented": statestore.Documented}
	for _, r := range rows.Rows {
		t.Run(r.Section+": "+r.Sentence, func(t *testing.T) {
			r.Options.Options.Dialect = dialects[r.Options.Dialect]
			checked := false
			with(t, r.Options.Options, func(t *testing.T, store Store) {
				checked = true
				if err := play(t, store, r.Steps); errors.Is(err, ErrUnsupported) {
					t.Skip(err)
				} else if err != nil {
					t.Error(err)
				}
			})
			if !checked {
				t.Error("the row was not checked")
			}
		})
	}
}

// player runs the steps of a row.
type player struct {
	t        testing.TB
	store    Store
	clients  map[string]Client
	versions map[string]string // by the names that the row gives them
	wall     int64             // the store's time of day after the last pass
}

// play runs steps, and returns the first error of a client, or the first difference.
func play(t testing.TB, store Store, steps []step) error {
	p := &player{t: t, store: store, clients: make(map[string]Client), versions: make(map[string]string)}
	p.pass(0)
	for i, s := range steps {
		if err := p.step(&s); err != nil {
			return fmt.Errorf("step %d, %s %q %q: %w", i+1, s.Client, s.Words, s.Payload, err)
		}
	}
	return nil
}

// pass waits. From then on timestamps are relative to the time of day after the wait, because
// real time goes on between a request and its expected reply.
func (p *player) pass(d time.Duration) {
	p.store.Pass(d)
	p.wall = p.store.WallMillis()
}

func (p *player) client(id string) Client {
	if p.clients[id] == nil {
		p.clients[id] = p.store.Connect(p.t, id)
	}
	return p.clients[id]
}

func (p *player) step(s *step) error {
	switch {
	case s.Drop != "":
		p.client(s.Drop).Drop()
		delete(p.clients, s.Drop)
		return nil
	case s.Client == "":
		p.pass(time.Duration(s.Pass) * time.Millisecond)
	default:
		if err := p.request(s); err != nil {
			return err
		}
	}
	return p.compareNotifications(s)
}

func (p *player) request(s *step) error {
	request := Request{
		Timestamp: p.stamp(s.Timestamp), FencingToken: p.stamp(s.FencingToken),
		Correlation: s.Correlation, Again: s.Again, Published: s.Published, Store: s.Store, Denied: s.Denied,
	}
	if request.Payload = bytesOf(s.Payload); s.Words != nil {
		request.Payload = payloadOf(s.Words)
	}
	reply, err := p.client(s.Client).Do(request)
	if err != nil {
		return err
	}
	if string(reply.Payload) != string(bytesOf(s.Reply)) {
		return fmt.Errorf("the reply is %q; want %q", reply.Payload, bytesOf(s.Reply))
	}
	return p.compareVersion(s.Version, reply.Version)
}

// bytesOf returns the bytes of a text of the table: each character has the number of its byte.
func bytesOf(text string) (all []byte) {
	for _, character := range text {
		all = append(all, byte(character))
	}
	return all
}

func payloadOf(words []string) []byte {
	payload := resp3.AppendArray(nil, len(words))
	for _, word := range words {
		payload = resp3.AppendBulk(payload, bytesOf(word))
	}
	return payload
}

// stamp returns the text of a timestamp. A row writes @ and the name of a version, + and a difference from
// now, or the text itself.
func (p *player) stamp(written *string) *string {
	if written == nil || *written == "" {
		return written
	}
	text := *written
	switch text[0] {
	case '@':
		text = p.versions[text[1:]]
	case '+':
		text = p.relative(text)
	}
	return &text
}

// relative converts +30000:5:CLIENT to a timestamp.
func (p *player) relative(written string) string {
	ahead, rest, _ := strings.Cut(written[1:], ":")
	millis, err := strconv.ParseInt(ahead, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return strconv.FormatInt(p.wall+millis, 10) + ":" + rest
}

// compareVersion compares a version with the table, and records it under its name if the name
// is new.
func (p *player) compareVersion(want, got string) error {
	isRight := true
	switch name, isName := strings.CutPrefix(want, "@"); {
	case want == "none":
		isRight = got == ""
	case want == "any":
		isRight = got != ""
	case want == "now":
		isRight = p.isNow(got)
	case strings.HasPrefix(want, ">@"):
		earlier, _ := hlc.Parse(p.versions[want[2:]])
		version, err := hlc.Parse(got)
		isRight = err == nil && version.Compare(earlier) > 0
	case strings.HasPrefix(want, "+"):
		isRight = strings.HasPrefix(got, p.relative(want)+":")
	case isName && p.versions[name] == "":
		p.versions[name], isRight = got, got != ""
	case isName:
		isRight = got == p.versions[name]
	}
	if !isRight {
		return fmt.Errorf("the version is %q; want %s, at %d with %q", got, want, p.wall, p.versions)
	}
	return nil
}

// isNow reports whether a version is the store's time of day. Outside of bubbles the time of
// day goes on while a script runs.
func (p *player) isNow(version string) bool {
	const slack = 1000
	v, err := hlc.Parse(version)
	return err == nil && v.Counter == 0 && v.Wall >= p.wall-slack && v.Wall <= p.store.WallMillis()+slack
}

// compareNotifications compares what each client got with what it should have got.
func (p *player) compareNotifications(s *step) error {
	wanted := make(map[string][]int) // by client
	for i, n := range s.Notifications {
		wanted[n.Client] = append(wanted[n.Client], i)
	}
	for id, client := range p.clients {
		got := client.Notifications(len(wanted[id]))
		if len(got) != len(wanted[id]) {
			return fmt.Errorf("%s got the notifications %q; want %d of %v", id, got, len(wanted[id]), s.Notifications)
		}
		for i, n := range got {
			want := s.Notifications[wanted[id][i]]
			if n.Key != string(bytesOf(want.Key)) || string(n.Payload) != string(payloadOf(want.Words)) {
				return fmt.Errorf("%s got the notification %q of %q; want %v", id, n.Payload, n.Key, want)
			}
			if err := p.compareVersion(want.Version, n.Version); err != nil {
				return fmt.Errorf("a notification of %s: %w", id, err)
			}
		}
	}
	return nil
}
