package statestoretest

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// step is one line of a script.
type step struct {
	line int
	text string
	kind stepKind

	client    string
	words     []string      // of a request or an expectation
	raw       bool          // words[0] is a whole payload
	ts, ft    string        // as written; empty: not given
	corr      string        // of a request
	store     string        // of a request; empty: not given
	denied    bool          // of a request
	again     bool          // of a request
	published bool          // of a request
	version   string        // of an expectation, without the @; empty: not given
	pass      time.Duration // the time of a pass
}

type stepKind uint8

const (
	stepComment stepKind = iota // and blank lines
	stepRequest
	stepReply
	stepNotification
	stepPass
	stepDrop
)

// parseScript parses a script. The error has the number of the line.
func parseScript(script string) ([]step, error) {
	var steps []step
	for i, text := range strings.Split(strings.TrimRight(script, "\n"), "\n") {
		s, err := parseStep(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", i+1, text, err)
		}
		s.line, s.text = i+1, text
		steps = append(steps, s)
	}
	return steps, nil
}

func parseStep(text string) (step, error) {
	if text == "" || strings.HasPrefix(text, "#") {
		return step{kind: stepComment}, nil
	}
	words, err := splitWords(text)
	if err != nil {
		return step{}, err
	}
	first, rest := words[0].text, words[1:]
	switch {
	case first == "pass" && len(rest) == 1:
		d, err := time.ParseDuration(rest[0].text)
		return step{kind: stepPass, pass: d}, err
	case first == "drop" && len(rest) == 1:
		return step{kind: stepDrop, client: rest[0].text}, nil
	case first == "=" && len(rest) > 0:
		return parseExpectation(step{kind: stepReply}, rest)
	case first == "!" && len(rest) > 2:
		return parseExpectation(step{kind: stepNotification, client: rest[0].text}, rest[1:])
	case len(rest) > 0 && first != "=" && first != "!":
		return parseRequest(step{kind: stepRequest, client: first}, rest)
	}
	return step{}, fmt.Errorf("no request, reply, notification, pass or drop")
}

func parseExpectation(s step, words []word) (step, error) {
	for _, w := range words {
		if version, ok := strings.CutPrefix(w.text, "@"); ok && !w.quoted {
			s.version = version
			continue
		}
		s.words = append(s.words, w.text)
	}
	return s, nil
}

func parseRequest(s step, words []word) (step, error) {
	properties := map[string]*string{"ts=": &s.ts, "ft=": &s.ft, "corr=": &s.corr, "store=": &s.store}
	for _, w := range words {
		end := strings.Index(w.text, "=") + 1
		property := properties[w.text[:end]]
		switch {
		case !w.quoted && property != nil:
			*property = w.text[end:]
		case !w.quoted && w.text == "denied":
			s.denied = true
		case !w.quoted && w.text == "again":
			s.again = true
		case !w.quoted && w.text == "published":
			s.published = true
		default:
			s.words = append(s.words, w.text)
		}
	}
	if len(s.words) == 2 && s.words[0] == "raw" {
		s.raw, s.words = true, s.words[1:]
	}
	return s, nil
}

type word struct {
	text   string
	quoted bool // from its first character on
}

// splitWords splits a line at blanks, except within string literals.
func splitWords(line string) ([]word, error) {
	var words []word
	for line = strings.TrimLeft(line, " "); line != ""; line = strings.TrimLeft(line, " ") {
		if line[0] == '"' {
			literal, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, err
			}
			text, _ := strconv.Unquote(literal) // QuotedPrefix has checked it
			words = append(words, word{text: text, quoted: true})
			line = line[len(literal):]
			continue
		}
		// ts="…" keeps its quotes: they mark a literal text.
		end := strings.IndexByte(line, ' ')
		if at := strings.Index(line, `="`); at >= 0 && (end < 0 || at < end) {
			literal, err := strconv.QuotedPrefix(line[at+1:])
			if err != nil {
				return nil, err
			}
			end = at + 1 + len(literal)
		}
		if end < 0 {
			end = len(line)
		}
		words = append(words, word{text: line[:end]})
		line = line[end:]
	}
	return words, nil
}
