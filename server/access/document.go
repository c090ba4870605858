package access

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
)

// document is the file as it is written. Lists of globs are nodes, to distinguish an empty list
// from one that is left out. Elements of lists are pointers, because the decoder drops null
// elements from other lists.
type document struct {
	Users []*userEntry `yaml:"users"`
	Rules []*ruleEntry `yaml:"rules"`
}

type userEntry struct {
	Name     string    `yaml:"name"`
	Password *string   `yaml:"password"`
	Clients  yaml.Node `yaml:"clients"`
}

type ruleEntry struct {
	Users     yaml.Node `yaml:"users"`
	Read      yaml.Node `yaml:"read"`
	Write     yaml.Node `yaml:"write"`
	Publish   yaml.Node `yaml:"publish"`
	Subscribe yaml.Node `yaml:"subscribe"`
}

// expected says what belongs where the decoder wanted a type.
var expected = map[string]string{
	"access.document":  "the fields users, rules",
	"access.userEntry": "the fields name, password, clients",
	"access.ruleEntry": "the fields users, read, write, publish, subscribe",
	"[]*string":        `a list, such as ["a", "b-*"]`,
	"string":           "text",
}

func parse(text []byte) (*policy, error) {
	var d document
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	// An empty file is EOF, and a file without users.
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, explain(err)
	}
	if err := decoder.Decode(new(yaml.Node)); err == nil {
		return nil, errors.New("a second YAML document begins at ---, and would be ignored: make it one")
	} else if !errors.Is(err, io.EOF) {
		return nil, explain(err)
	}
	return d.policy()
}

func (d *document) policy() (*policy, error) {
	if len(d.Users) == 0 {
		return nil, errors.New("no users: list under \"users\" the users that may connect")
	}
	p := &policy{users: make(map[string]*user, len(d.Users)), key: make([]byte, markSize)}
	_, _ = rand.Read(p.key) // never fails
	highest := bcrypt.MinCost
	for i, entry := range d.Users {
		if entry == nil || entry.Name == "" {
			return nil, fmt.Errorf("user %d of the list has no name: write \"name\", the user name of CONNECT or the subject of the certificate", i+1)
		}
		if p.users[entry.Name] != nil {
			return nil, fmt.Errorf("user %q is there twice: remove one, or rename it", entry.Name)
		}
		u, cost, err := entry.user()
		if err != nil {
			return nil, fmt.Errorf("user %q: %w", entry.Name, err)
		}
		p.users[entry.Name] = u
		highest = max(highest, cost)
	}
	p.dummy = dummyHash(highest)
	for i, entry := range d.Rules {
		if err := cmp.Or(entry, new(ruleEntry)).addTo(p); err != nil {
			return nil, fmt.Errorf("rule %d of the list: %w", i+1, err)
		}
	}
	return p, nil
}

func (e *userEntry) user() (u *user, cost int, err error) {
	u = &user{allowed: make(map[string]globs)}
	if e.Password != nil {
		if cost, err = checkHash(*e.Password); err != nil {
			return nil, 0, err
		}
		u.hash = []byte(*e.Password)
	}
	u.clients, err = readGlobs("clients", &e.Clients)
	return u, cost, err
}

// addTo adds what the rule allows to each user that it applies to.
func (e *ruleEntry) addTo(p *policy) error {
	users, err := readGlobs("users", &e.Users)
	if err != nil {
		return err
	}
	if users == nil {
		return errors.New("it applies to no user: list names or globs under \"users\"; \"*\" is every user")
	}
	allows := false
	for field, node := range map[string]*yaml.Node{"read": &e.Read, "write": &e.Write, "publish": &e.Publish, "subscribe": &e.Subscribe} {
		list, err := readGlobs(field, node)
		switch {
		case err != nil:
			return err
		case list == nil:
			continue
		case field == "publish" || field == "subscribe":
			if err := checkTopics(list); err != nil {
				return err
			}
			p.topics = true
		}
		allows = true
		for name, u := range p.users {
			if users.match(name) {
				u.allowed[field] = append(u.allowed[field], list...)
			}
		}
	}
	if !allows {
		return errors.New("it allows nothing: add read, write, publish or subscribe, or remove the rule")
	}
	return nil
}

// checkTopics refuses the wildcards of MQTT. As ordinary bytes they would allow a subscription to
// that filter, and none of the messages that match it.
func checkTopics(topics globs) error {
	i := slices.IndexFunc(topics, func(g glob) bool { return strings.ContainsAny(string(g), "+#") })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("the topic %q has a wildcard of MQTT, which rules do not know: write * for any run of characters, slashes included; it covers filters too", topics[i])
}

// readGlobs returns nil for a list that is left out. An empty list is an error: "clients: []" is
// meant as none, and must not mean any.
func readGlobs(field string, node *yaml.Node) (globs, error) {
	if node.IsZero() {
		return nil, nil
	}
	var texts []*string
	if err := node.Decode(&texts); err != nil {
		return nil, fmt.Errorf("%s: %w", field, explain(err))
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("line %d: %s is an empty list: remove it, or say what is in it", node.Line, field)
	}
	read := make(globs, len(texts))
	for i, text := range texts {
		if text == nil || *text == "" {
			return nil, fmt.Errorf("line %d: %s has an empty glob, which matches nothing: remove it, or write \"*\" for everything", node.Line, field)
		}
		read[i] = glob(*text)
	}
	return read, nil
}

// explain words an error of the decoder in terms of the file.
func explain(err error) error {
	var mistakes *yaml.TypeError
	if errors.As(err, &mistakes) {
		lines := make([]string, len(mistakes.Errors))
		for i, line := range mistakes.Errors {
			lines[i] = explainLine(line)
		}
		return errors.New(strings.Join(lines, "; "))
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.Contains(text, "unknown anchor") || strings.Contains(text, "alphabetic or numeric") {
		text += ": put a glob that begins with * in quotes"
	}
	return errors.New(text)
}

// explainLine replaces the name of a Go type by what belongs there.
func explainLine(line string) string {
	if field, where, ok := strings.Cut(line, " not found in type "); ok {
		return field + " is unknown; there are " + strings.TrimPrefix(expected[where], "the fields ")
	}
	i := strings.LastIndex(line, " into ")
	if i < 0 {
		return line
	}
	belongs := cmp.Or(expected[strings.TrimLeft(line[i+len(" into "):], "*")], "a list")
	return strings.Replace(line[:i], "cannot unmarshal ", "", 1) + " does not belong here: write " + belongs
}
