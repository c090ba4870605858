package access

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
)

// document is the file as it is written.
type document struct {
	Users []userEntry `yaml:"users"`
	Rules []ruleEntry `yaml:"rules"`
}

type userEntry struct {
	Name     string `yaml:"name"`
	Password string `yaml:"password"`
	Clients  globs  `yaml:"clients"`
}

type ruleEntry struct {
	Users     globs `yaml:"users"`
	Read      globs `yaml:"read"`
	Write     globs `yaml:"write"`
	Publish   globs `yaml:"publish"`
	Subscribe globs `yaml:"subscribe"`
}

func parse(text []byte) (*policy, error) {
	var whole yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&whole); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("no users: list under \"users\" the users that may connect")
	case err != nil:
		return nil, explain(err)
	}
	if err := checkFilled("the file", &whole); err != nil {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second YAML document begins at ---, and would be ignored: make it one")
	}
	var d document
	decoder = yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil {
		return nil, explain(err)
	}
	return d.policy()
}

// checkFilled refuses a list or a text that is empty: "clients: []" is meant as none, and must not mean any.
func checkFilled(field string, node *yaml.Node) error {
	if node.ShortTag() == "!!null" || node.Kind != yaml.AliasNode && node.Value == "" && len(node.Content) == 0 {
		return fmt.Errorf("line %d: %s is empty: remove it, or write what is in it; \"*\" is everything", node.Line, field)
	}
	for i, part := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			field = part.Value
		}
		if err := checkFilled(field, part); err != nil {
			return err
		}
	}
	return nil
}

func (d *document) policy() (*policy, error) {
	if len(d.Users) == 0 {
		return nil, errors.New("no users: list under \"users\" the users that may connect")
	}
	p := &policy{users: make(map[string]*user, len(d.Users)), key: make([]byte, markSize)}
	_, _ = rand.Read(p.key) // never fails
	highest := bcrypt.MinCost
	for i, entry := range d.Users {
		switch {
		case entry.Name == "":
			return nil, fmt.Errorf("user %d of the list has no name: write \"name\", the user name of CONNECT or the subject "+
				"of the certificate", i+1)
		case p.users[entry.Name] != nil:
			return nil, fmt.Errorf("user %q is there twice: remove one, or rename it", entry.Name)
		}
		u := &user{clients: entry.Clients, allowed: make(map[string]globs)}
		if entry.Password != "" {
			cost, err := checkHash(entry.Password)
			if err != nil {
				return nil, fmt.Errorf("user %q: %w", entry.Name, err)
			}
			u.hash, highest = []byte(entry.Password), max(highest, cost)
		}
		p.users[entry.Name] = u
	}
	p.dummy = dummyHash(highest)
	for i, entry := range d.Rules {
		if err := entry.addTo(p); err != nil {
			return nil, fmt.Errorf("rule %d of the list: %w", i+1, err)
		}
	}
	return p, nil
}

// addTo adds what the rule allows to each user that it applies to.
func (e *ruleEntry) addTo(p *policy) error {
	topics := slices.Concat(e.Publish, e.Subscribe)
	p.topics = p.topics || topics != nil
	switch i := slices.IndexFunc(topics, func(g glob) bool { return strings.ContainsAny(string(g), "+#") }); {
	case e.Users == nil:
		return errors.New("it applies to no user: list names or globs under \"users\"; \"*\" is every user")
	case e.Read == nil && e.Write == nil && topics == nil:
		return errors.New("it allows nothing: add read, write, publish or subscribe, or remove the rule")
	// As ordinary bytes they would allow a subscription to that filter, and none of the messages that match it.
	case i >= 0:
		return fmt.Errorf("the topic %q has a wildcard of MQTT, which rules do not know: write * for any run of "+
			"characters, slashes included; it covers filters too", topics[i])
	}
	for name, u := range p.users {
		if !e.Users.match(name) {
			continue
		}
		for field, list := range map[string]globs{"read": e.Read, "write": e.Write, "publish": e.Publish,
			"subscribe": e.Subscribe} {
			u.allowed[field] = append(u.allowed[field], list...)
		}
	}
	return nil
}

const (
	userFields = "name, password, clients"
	ruleFields = "users, read, write, publish, subscribe"
	wrongType  = " does not belong here: write "
	quotes     = ": put a glob that begins with * in quotes"
)

// words has what errors of the decoder say, and the same in terms of the file.
var words = strings.NewReplacer("yaml: ", "", "unmarshal errors:\n  ", "", "\n  ", "; ", "cannot unmarshal ", "",
	" not found in type access.document", " is unknown; there are users, rules",
	" not found in type access.userEntry", " is unknown; there are "+userFields,
	" not found in type access.ruleEntry", " is unknown; there are "+ruleFields,
	" into access.document", wrongType+"the fields users, rules",
	" into access.userEntry", wrongType+"the fields "+userFields,
	" into access.ruleEntry", wrongType+"the fields "+ruleFields,
	" into []access.userEntry", wrongType+"a list",
	" into []access.ruleEntry", wrongType+"a list",
	" into access.globs", wrongType+`a list, such as ["a", "b-*"]`,
	" into access.glob", wrongType+"text",
	" into string", wrongType+"text",
	"' referenced", "' referenced"+quotes,
	"alphabetic or numeric character", "alphabetic or numeric character"+quotes,
)

func explain(err error) error { return errors.New(words.Replace(err.Error())) }
