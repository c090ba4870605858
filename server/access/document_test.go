package access

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// letMeIn is the hash, of the lowest cost, of the password "let me in".
const letMeIn = "$2a$04$zK0Fn7VZxzgQcXtO8vlANuDqj15Dqsb5wzdlSlgS8JEClFYkYiayW"

func TestParseRefusesWhatItCannotMeanAndNamesTheRemedy(t *testing.T) {
	const a = "users:\n  - name: a\n"
	rule := func(text string) string { return a + "rules:\n  - {users: [a], read: [k]}\n  - " + text + "\n" }
	password := func(hash string) string { return a + "    password: \"" + hash + "\"\n" }
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"nothing at all", "", []string{"no users", "that may connect"}},
		{"an empty list of users", "users: []\n", []string{"line 1: users is empty"}},
		{"no list of users", "rules: [{users: [a], read: [k]}]\n", []string{"no users"}},
		{"an unknown field of a user", a + "    pasword: x\n", []string{"line 3: field pasword is unknown", "name, password, clients"}},
		{"an unknown field of a rule", rule("{users: [a], reed: [k]}"), []string{"line 5: field reed is unknown", "read, write, publish, subscribe"}},
		{"two mistakes at once", "usres: [a]\nrool: [a]\n", []string{"line 1: field usres", "line 2: field rool"}},
		{"something that is not YAML", "users: [\n", []string{"line"}},
		{"a second document", a + "---\nrules: []\n", []string{"second YAML document", "make it one"}},
		{"a user without a name", a + "  - password: x\n", []string{"user 2 of the list", `write "name"`}},
		{"a user that is there twice", a + "  - name: b\n  - name: a\n", []string{`user "a" is there twice`, "remove one"}},
		{"a user that is a string", "users: [gateway-a]\n", []string{"line 1: !!str `gateway-a` does not belong here: write the fields name, password, clients"}},
		{"a name that is a list", "users: [{name: [a]}]\n", []string{"line 1: !!seq does not belong here: write text"}},
		{"a document that is a list", "- name: a\n", []string{"line 1", "write the fields users, rules"}},
		{"a password in clear", password("let me in"), []string{`user "a"`, "not a bcrypt hash", "tenure password"}},
		{"a hash that lost its end", password(letMeIn[:59]), []string{`user "a"`, "not a bcrypt hash"}},
		{"a hash with a newline behind it", password(letMeIn + `\n`), []string{`user "a"`, "not a bcrypt hash"}},
		{"a hash of a cost that bcrypt does not have", password("$2a$03" + letMeIn[6:]), []string{`user "a"`, "not a bcrypt hash"}},
		{"a hash that takes too long", password("$2a$17" + letMeIn[6:]), []string{`user "a"`, "cost 17", "at most 16", "tenure password"}},
		{"clients that are an empty list", a + "    clients: []\n", []string{"line 3: clients is empty", "remove it"}},
		{"clients that are nothing", a + "    clients:\n", []string{"line 3: clients is empty"}},
		{"clients with an empty glob", a + "    clients: [x, \"\"]\n", []string{"line 3: clients is empty", `"*" is everything`}},
		{"clients that are no list", a + "    clients: a\n", []string{"line 3: !!str `a` does not belong here: write a list, such as"}},
		{"a rule that is nothing", rule(""), []string{"line 5: rules is empty"}},
		{"a rule for no user", rule("{read: [k]}"), []string{"rule 2 of the list", "applies to no user", "is every user"}},
		{"a rule that allows nothing", rule("{users: [a]}"), []string{"rule 2 of the list", "allows nothing", "add read"}},
		{"a rule with an empty list", rule("{users: [a], read: [k], publish: []}"), []string{"line 5: publish is empty"}},
		{"a topic to publish to with a wildcard", rule("{users: [a], publish: [\"factory/+/x\"]}"), []string{"rule 2 of the list", `"factory/+/x"`, "write *"}},
		{"a glob that begins with a star without quotes", rule("{users: [*a], read: [k]}"), []string{"in quotes"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.text))
			if err == nil {
				t.Fatalf("accepted:\n%s", test.text)
			}
			if !strings.HasPrefix(err.Error(), "access: ") {
				t.Errorf("%q does not name the package", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if strings.Contains(err.Error(), "let me in") || strings.Contains(err.Error(), "yaml.") || strings.Contains(err.Error(), "Entry") {
				t.Errorf("it says too much: %q", err)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	const a = "users:\n  - name: a\n"
	for _, test := range []struct{ name, text string }{
		{"the hash of htpasswd", a + "    password: $2y$10" + letMeIn[6:] + "\n"},
		{"the highest cost", a + "    password: $2b$16" + letMeIn[6:] + "\n"},
		{"a list that is used again", "users:\n  - {name: a, clients: &ids [x]}\n  - {name: b, clients: *ids}\n"},
		{"JSON", `{"users": [{"name": "a"}], "rules": [{"users": ["*"], "read": ["*"]}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Parse([]byte(test.text)); err != nil {
				t.Errorf("%v in\n%s", err, test.text)
			}
		})
	}
}

func TestTheFileInThePackageCommentIsAccepted(t *testing.T) {
	if _, err := Parse(documented(t)); err != nil {
		t.Error(err)
	}
}

// documented returns the YAML of the package comment.
func documented(t *testing.T) []byte {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(doc)) {
		code, ok := strings.CutPrefix(line, "//\t")
		if ok && (text.Len() > 0 || code == "users:\n") {
			text.WriteString(code)
		} else if text.Len() > 0 {
			break
		}
	}
	return []byte(text.String())
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("users:\n  - {name: a, password: " + letMeIn + ", clients: &x [b]}\nrules:\n  - {users: *x, read: [k], publish: [t]}\n"))
	f.Add([]byte("users: [{name: !!binary /w==}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(text)
		if (file == nil) == (err == nil) {
			t.Fatalf("%v, %v", file, err)
		}
		if err == nil && file.Authenticate(Credentials{Certified: true}) == nil {
			t.Error(fmt.Errorf("a client without a name is admitted by\n%s", text))
		}
	})
}
