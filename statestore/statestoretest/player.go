package statestoretest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/resp3"
)

// player runs a script against a store.
type player struct {
	t        testing.TB
	store    Store
	clients  map[string]Client
	versions map[string]string // by the names that the script gives them
	reply    *Reply            // to the last request, until it was compared
	wall     int64             // the store's time of day after the last pass
}

func newPlayer(t testing.TB, store Store) *player {
	p := &player{t: t, store: store, clients: make(map[string]Client), versions: make(map[string]string)}
	p.pass(0)
	return p
}

// play runs steps and reports differences. It returns ErrUnsupported if the client cannot send
// a request of the script.
func (p *player) play(steps []step) error {
	for i, s := range steps {
		if p.reply != nil && s.kind != stepReply && s.kind != stepComment {
			return fmt.Errorf("line %d: a reply is missing before %q", s.line, s.text)
		}
		switch s.kind {
		case stepRequest:
			reply, err := p.client(s.client).Do(p.request(s))
			if err != nil {
				return err
			}
			p.reply = &reply
		case stepReply:
			p.compareReply(s)
			// The notifications of the request must arrive before the next step.
			p.compareNotifications(notificationsAfter(steps[i+1:]))
		case stepPass:
			p.pass(s.pass)
			p.compareNotifications(notificationsAfter(steps[i+1:]))
		case stepDrop:
			p.client(s.client).Drop()
			delete(p.clients, s.client)
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

// notificationsAfter returns the notifications that a script expects before its next step.
func notificationsAfter(steps []step) []step {
	var wanted []step
	for _, s := range steps {
		switch s.kind {
		case stepNotification:
			wanted = append(wanted, s)
		case stepComment:
		default:
			return wanted
		}
	}
	return wanted
}

func (p *player) client(id string) Client {
	client := p.clients[id]
	if client == nil {
		client = p.store.Connect(p.t, id)
		p.clients[id] = client
	}
	return client
}

func (p *player) request(s step) Request {
	request := Request{Correlation: s.corr, Again: s.again, Published: s.published, Store: s.store, Denied: s.denied}
	if s.raw {
		request.Payload = []byte(s.words[0])
	} else {
		request.Payload = resp3.AppendCommand(nil, s.words...)
	}
	ts := s.ts
	if ts == "" && !s.raw && strings.EqualFold(s.words[0], "SET") {
		ts = "+0s:0:" + s.client
	}
	request.Timestamp = p.stamp(s, ts)
	request.FencingToken = p.stamp(s, s.ft)
	return request
}

// stamp returns the text of a timestamp for the notation of a script.
func (p *player) stamp(s step, written string) *string {
	text := written
	switch {
	case written == "" || written == "none":
		return nil
	case written[0] == '"':
		var err error
		if text, err = strconv.Unquote(written); err != nil {
			p.t.Fatalf("line %d: %s: %v", s.line, written, err)
		}
	case written[0] == '@':
		var known bool
		if text, known = p.versions[written[1:]]; !known {
			p.t.Fatalf("line %d: no version is called %q", s.line, written[1:])
		}
	case written[0] == '+' || written[0] == '-':
		text = p.relative(s, written)
	}
	return &text
}

// relative converts +30s:5:CLIENT to a timestamp.
func (p *player) relative(s step, written string) string {
	ahead, rest, _ := strings.Cut(written, ":")
	d, err := time.ParseDuration(ahead)
	if err != nil {
		p.t.Fatalf("line %d: %v", s.line, err)
	}
	return strconv.FormatInt(p.wall+d.Milliseconds(), 10) + ":" + rest
}

func (p *player) compareReply(s step) {
	p.t.Helper()
	if p.reply == nil {
		p.t.Errorf("line %d: %q follows no request", s.line, s.text)
		return
	}
	reply := *p.reply
	p.reply = nil
	if got, want := replyText(reply.Payload), strings.Join(s.words, " "); got != want {
		p.t.Errorf("line %d: the reply is %q; want %q", s.line, got, want)
	}
	p.compareVersion(s, reply.Version)
}

// compareVersion compares a version with the script, and records it under its name if the name
// is new.
func (p *player) compareVersion(s step, got string) {
	p.t.Helper()
	fail := func(want string) {
		p.t.Helper()
		p.t.Errorf("line %d, %q: the version is %q; want %s", s.line, s.text, got, want)
	}
	switch name := s.version; {
	case name == "":
	case name == "-":
		if got != "" {
			fail("none")
		}
	case name == "*":
		if got == "" {
			fail("one")
		}
	case name == "now":
		if !p.isNow(got) {
			fail(fmt.Sprintf("the store's time of day, %d:0:…", p.wall))
		}
	case name[0] == '>':
		if compareVersions(got, p.versions[name[1:]]) <= 0 {
			fail("one above " + p.versions[name[1:]])
		}
	case name[0] == '+':
		if want := p.relative(s, name) + ":"; !strings.HasPrefix(got, want) {
			fail(want + "…")
		}
	default:
		want, known := p.versions[name]
		switch {
		case !known && got == "":
			fail("one")
		case !known:
			p.versions[name] = got
		case got != want:
			fail(want)
		}
	}
}

// isNow reports whether a version is the store's time of day. Outside of bubbles the time of
// day goes on while a script runs.
func (p *player) isNow(version string) bool {
	const slack = 1000
	v, err := hlc.Parse(version)
	return err == nil && v.Counter == 0 && v.Wall >= p.wall-slack && v.Wall <= p.store.WallMillis()+slack
}

// compareVersions returns the order of two versions. A malformed text is below every version.
func compareVersions(a, b string) int {
	x, _ := hlc.Parse(a)
	y, _ := hlc.Parse(b)
	return x.Compare(y)
}

// compareNotifications compares what each client got with what it should have got.
func (p *player) compareNotifications(wanted []step) {
	p.t.Helper()
	for id, client := range p.clients {
		var mine []step
		for _, s := range wanted {
			if s.client == id {
				mine = append(mine, s)
			}
		}
		got := client.Notifications(len(mine))
		for i, n := range got {
			if i >= len(mine) {
				p.t.Errorf("client %q got a notification that is not in the script: %s", id, notificationText(n))
				continue
			}
			if want := strings.Join(mine[i].words, " "); notificationText(n) != want {
				p.t.Errorf("line %d: client %q got %q; want %q", mine[i].line, id, notificationText(n), want)
			}
			p.compareVersion(mine[i], n.Version)
		}
		for _, missing := range mine[min(len(got), len(mine)):] {
			p.t.Errorf("line %d: client %q did not get %q", missing.line, id, missing.text)
		}
	}
}

// replyText is a reply as scripts write it: without the end of its last line, and a
// bulk string without its length.
func replyText(payload []byte) string {
	value, err := resp3.DecodeValue(payload)
	if err == nil && value.Kind == resp3.Bulk {
		return "$ " + string(value.Text)
	}
	text, ended := strings.CutSuffix(string(payload), "\r\n")
	if !ended {
		return strconv.Quote(text)
	}
	return text
}

// notificationText is a notification as scripts write it: its key, then the words of
// its payload without the first.
func notificationText(n Notification) string {
	words, err := resp3.DecodeArray(nil, n.Payload)
	if err != nil || len(words) == 0 || string(words[0]) != "NOTIFY" {
		return n.Key + " " + strconv.Quote(string(n.Payload))
	}
	text := n.Key
	for _, w := range words[1:] {
		text += " " + string(w)
	}
	return text
}
