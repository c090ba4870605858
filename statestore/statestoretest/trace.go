package statestoretest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Trace runs a script and returns it with the actual replies and notifications, with their
// versions. Named versions have the name too, as in "@token=1696374425000:1:StateStore". It
// returns an error with the number of a line that is malformed or cannot be sent.
func Trace(t testing.TB, store Store, script string) (string, error) {
	steps, err := parseScript(script)
	if err != nil {
		return "", err
	}
	r := tracer{player: newPlayer(t, store)}
	for i, s := range steps {
		if err := r.trace(s, steps[i+1:]); err != nil {
			return "", fmt.Errorf("line %d: %w", s.line, err)
		}
	}
	return r.out.String(), nil
}

type tracer struct {
	*player
	out   strings.Builder
	order []string // of the clients, as they first appear
}

func (r *tracer) trace(s step, rest []step) error {
	switch s.kind {
	case stepReply, stepNotification:
		return nil // the trace has the actual ones
	}
	r.out.WriteString(s.text + "\n")
	switch s.kind {
	case stepRequest:
		if r.clients[s.client] == nil {
			r.order = append(r.order, s.client)
		}
		reply, err := r.client(s.client).Do(r.request(s))
		if err != nil {
			return err
		}
		name := ""
		if len(rest) > 0 && rest[0].kind == stepReply && isName(rest[0].version) && reply.Version != "" {
			name = rest[0].version
			r.versions[name] = reply.Version
			name += "="
		}
		r.say("= "+traceText(replyText(reply.Payload)), name, reply.Version)
	case stepPass:
		r.pass(s.pass)
	case stepDrop:
		r.client(s.client).Drop()
		delete(r.clients, s.client)
	}
	for _, id := range r.order {
		if client := r.clients[id]; client != nil {
			for _, n := range client.Notifications(0) {
				r.say("! "+id+" "+traceText(notificationText(n)), "", n.Version)
			}
		}
	}
	return nil
}

// isName reports whether text is a name, and not a version as in a trace.
func isName(version string) bool {
	return version != "" && version != "now" && !strings.ContainsAny(version[:1], ">*-+") && !strings.Contains(version, ":")
}

func (r *tracer) say(text, name, version string) {
	r.out.WriteString(text)
	if version != "" {
		r.out.WriteString(" @" + name + version)
	}
	r.out.WriteString("\n")
}

// traceText returns text in printable characters.
func traceText(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}
