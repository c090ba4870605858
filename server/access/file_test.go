package access

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/statestore"
)

const plant = `
users:
  - name: gateway-a
    password: ` + letMeIn + `
    clients: ["gateway-a", "gateway-a-*"]
  - name: gateway-b
    password: ` + letMeIn + `
  - name: CN=press-7,O=Plant
    clients: ["press-7"]
  - name: auditor
    password: ` + letMeIn + `
  - name: "*"
rules:
  - users: ["gateway-*"]
    read:  ["press-7/*"]
    write: ["press-7/*"]
  - users: ["gateway-a"]
    read: ["oven/?", !!binary /wAq]
    publish:   ["factory/*"]
    subscribe: ["factory/*", "alarms"]
  - users: ["auditor"]
    read: ["*"]
  - users: ["CN=press-7,O=Plant"]
    write: ["press-7/active"]
    publish: ["answers/press-7"]
`

const keysOnly = `
users:
  - name: gateway-a
rules:
  - users: ["*"]
    read: ["k"]
`

func mustParse(t testing.TB, text string) *File {
	t.Helper()
	f, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAuthenticate(t *testing.T) {
	f := mustParse(t, plant)
	for _, test := range []struct {
		name        string
		credentials Credentials
		want        string // in the error; empty: admitted
	}{
		{"a user with the password", Credentials{Client: "gateway-a", User: "gateway-a", Password: []byte("let me in")}, ""},
		{"a user that may have any client id", Credentials{Client: "whatever", User: "gateway-b", Password: []byte("let me in")}, ""},
		{"a user with a certificate", Credentials{Client: "press-7", User: "CN=press-7,O=Plant", Certified: true}, ""},
		{"a user with another client id", Credentials{Client: "gateway-b", User: "gateway-a", Password: []byte("let me in")}, "among the user's clients"},
		{"a user with a certificate and another client id", Credentials{Client: "press-8", User: "CN=press-7,O=Plant", Certified: true}, "among the user's clients"},
		{"a user with a wrong password", Credentials{Client: "gateway-a", User: "gateway-a", Password: []byte("let me out")}, "wrong password"},
		{"a user without the password", Credentials{Client: "gateway-a", User: "gateway-a"}, "neither a password nor a verified client certificate"},
		{"a user without a hash, with a password", Credentials{Client: "press-7", User: "CN=press-7,O=Plant", Password: []byte("let me in")}, "no verified client certificate"},
		{"no user name", Credentials{Client: "gateway-a", Password: []byte("let me in")}, "user name or a client certificate"},
		{"a stranger", Credentials{Client: "gateway-a", User: "gateway-z", Password: []byte("let me in")}, "no such user"},
		{"a stranger with a certificate", Credentials{Client: "gateway-a", User: "CN=x", Certified: true}, "not among the users"},
		{"a name that a rule's glob matches and no user has", Credentials{Client: "gateway-c", User: "gateway-c", Password: []byte("let me in")}, "no such user"},
		{"a password that is longer than bcrypt reads", Credentials{Client: "gateway-a", User: "gateway-a", Password: bytes.Repeat([]byte("x"), 73)}, "73 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := f.Authenticate(test.credentials)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, want %q", err, test.want)
			case err != nil && len(test.credentials.Password) > 1 && strings.Contains(err.Error(), string(test.credentials.Password)):
				t.Errorf("the password is in %q", err)
			}
		})
	}
}

// bcrypt compares the first 72 bytes and ignores what follows.
func TestAPasswordOf72BytesIsTheLongestAndNoOtherPassesForIt(t *testing.T) {
	longest := bytes.Repeat([]byte("x"), 72)
	hash, err := bcrypt.GenerateFromPassword(longest, bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	f := mustParse(t, "users:\n  - {name: a, password: \""+string(hash)+"\"}\n")
	if err := f.Authenticate(Credentials{User: "a", Password: longest}); err != nil {
		t.Error(err)
	}
	if f.Authenticate(Credentials{User: "a", Password: append(longest, 'y')}) == nil {
		t.Error("a password of 73 bytes is admitted for its first 72")
	}
}

func TestRefusalsTakeAsLongAsAWrongPassword(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("let me in"), 7)
	if err != nil {
		t.Fatal(err)
	}
	f := mustParse(t, "users:\n  - name: cheap\n    password: "+letMeIn+"\n  - name: a\n    clients: [a]\n    password: "+string(hash)+"\n  - name: certified\n")
	// bcrypt's work doubles with each step of the cost, and takes nearly all of the time.
	work := 0
	compareHash = func(hash, password []byte) error {
		cost, err := bcrypt.Cost(hash)
		if err != nil {
			t.Error(err)
		}
		work += 1 << cost
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	defer func() { compareHash = bcrypt.CompareHashAndPassword }()
	workOf := func(user, client, password string) int {
		work = 0
		if f.Authenticate(Credentials{Client: client, User: user, Password: []byte(password)}) == nil {
			t.Fatalf("%s is admitted", user)
		}
		return work
	}
	wrong := workOf("a", "a", "x")
	if wrong != 1<<7 {
		t.Errorf("a wrong password costs %d units of work, want one comparison", wrong)
	}
	for _, test := range []struct{ name, user, client, password string }{
		{"a stranger", "z", "a", "x"},
		{"a user without a password", "certified", "a", "x"},
		{"the right password with another client id", "a", "z", "let me in"},
		{"the right password with another client id again", "a", "z", "let me in"},
		{"a wrong password with another client id", "a", "z", "x"},
	} {
		if took := workOf(test.user, test.client, test.password); took != wrong {
			t.Errorf("%s costs %d units of work, and a wrong password %d", test.name, took, wrong)
		}
	}
}

func TestTheDummyHashIsCompared(t *testing.T) {
	for _, cost := range []int{4, 9, 10, maxCost} {
		if got, err := checkHash(string(dummyHash(cost))); got != cost || err != nil {
			t.Errorf("cost %d: %d, %v", cost, got, err)
		}
	}
	if err := bcrypt.CompareHashAndPassword(dummyHash(4), []byte("x")); !errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) {
		t.Errorf("%v: it did not come to a comparison", err)
	}
}

func TestAuthorize(t *testing.T) {
	f := mustParse(t, plant)
	const get, notify, set, del, vdel = statestore.VerbGet, statestore.VerbKeyNotify, statestore.VerbSet, statestore.VerbDel, statestore.VerbVDel
	for _, test := range []struct {
		name string
		user string
		verb statestore.Verb
		key  string
		want bool
	}{
		{"read allows GET", "auditor", get, "k", true},
		{"read allows KEYNOTIFY", "auditor", notify, "k", true},
		{"read does not allow SET", "auditor", set, "k", false},
		{"write allows SET", "CN=press-7,O=Plant", set, "press-7/active", true},
		{"write allows DEL", "CN=press-7,O=Plant", del, "press-7/active", true},
		{"write allows VDEL", "CN=press-7,O=Plant", vdel, "press-7/active", true},
		{"write does not allow GET", "CN=press-7,O=Plant", get, "press-7/active", false},
		{"nothing allows a verb that does not exist", "auditor", statestore.VerbKeyNotify + 1, "k", false},
		{"a glob covers a key", "gateway-b", set, "press-7/active", true},
		{"no rule covers a key", "gateway-b", get, "oven/1", false},
		{"of two rules the first allows", "gateway-a", get, "press-7/active", true},
		{"of two rules the second allows", "gateway-a", get, "oven/1", true},
		{"a key that is not text is covered", "gateway-a", get, "\xff\x00\xfe", true},
		{"a user no rule is for", "*", get, "press-7/active", false},
		{"a stranger whose name a glob of a rule matches", "gateway-c", get, "press-7/active", false},
		{"a stranger", "z", get, "k", false},
		{"no user name", "", get, "k", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := f.Authorize(Identity{Client: "c", User: test.user}, test.verb, test.key); got != test.want {
				t.Errorf("%s of %q by %q: %v", test.verb, test.key, test.user, got)
			}
		})
	}
}

func TestAuthorizeTopic(t *testing.T) {
	f := mustParse(t, plant)
	const publish, subscribe = true, false
	for _, test := range []struct {
		name  string
		user  string
		topic string
		write bool
		want  bool
	}{
		{"publish allows to publish", "gateway-a", "factory/line-1", publish, true},
		{"publish does not allow another topic", "gateway-a", "warehouse", publish, false},
		{"publish allows to be answered", "CN=press-7,O=Plant", "answers/press-7", publish, true},
		{"publish does not allow to subscribe", "CN=press-7,O=Plant", "answers/press-7", subscribe, false},
		{"subscribe allows to subscribe", "gateway-a", "alarms", subscribe, true},
		{"subscribe does not allow to publish", "gateway-a", "alarms", publish, false},
		{"subscribe allows a filter that the glob covers", "gateway-a", "factory/#", subscribe, true},
		{"subscribe does not allow a filter beyond the glob", "gateway-a", "#", subscribe, false},
		{"subscribe does not allow a filter that begins with a wildcard", "gateway-a", "+/line-1", subscribe, false},
		{"a user with rules for keys alone", "auditor", "factory/line-1", subscribe, false},
		{"a user no rule is for", "*", "factory/line-1", subscribe, false},
		{"a stranger whose name a glob of a rule matches", "gateway-c", "factory/line-1", publish, false},
		{"no user name", "", "factory/line-1", publish, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := f.AuthorizeTopic(Identity{Client: "c", User: test.user}, test.topic, test.write); got != test.want {
				t.Errorf("%q by %q, write %v: %v", test.topic, test.user, test.write, got)
			}
		})
	}
}

func TestAFileAboutKeysAloneLeavesTopicsAlone(t *testing.T) {
	f := mustParse(t, keysOnly)
	for _, write := range []bool{true, false} {
		if !f.AuthorizeTopic(Identity{User: "gateway-a"}, "factory/#", write) {
			t.Errorf("write %v: refused", write)
		}
	}
}

func TestOneRuleAboutTopicsClosesAllOthers(t *testing.T) {
	for _, field := range []string{"publish", "subscribe"} {
		f := mustParse(t, keysOnly+"  - users: [another]\n    "+field+": [t]\n")
		for _, write := range []bool{true, false} {
			if f.AuthorizeTopic(Identity{User: "gateway-a"}, "t", write) {
				t.Errorf("%s closes nothing, write %v", field, write)
			}
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.yaml")
	if _, err := Open(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	write(t, path, "rules: [{users: [a], read: [k]}]\n")
	if f, err := Open(path); f != nil || err == nil || !strings.HasPrefix(err.Error(), "access: "+path+": no users") {
		t.Errorf("%v, %v", f, err)
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.yaml")
	write(t, path, plant)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	identity := Identity{Client: "gateway-a", User: "gateway-a"}
	credentials := Credentials{Client: "gateway-a", User: "gateway-a", Password: []byte("let me in")}
	admitted := func() bool {
		authenticated := f.Authenticate(credentials) == nil
		if f.Authorize(identity, statestore.VerbGet, "press-7/active") != authenticated || f.AuthorizeTopic(identity, "factory/x", true) != authenticated {
			t.Error("keys, topics and connecting are of different versions")
		}
		return authenticated
	}
	if !admitted() {
		t.Fatal("refused from the beginning")
	}

	write(t, path, strings.Replace(plant, "read:", "reed:", 1))
	if err := f.Reload(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "reed") {
		t.Errorf("a typo: %v", err)
	}
	if !admitted() {
		t.Error("a typo puts the old rules out of force")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Reload(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if !admitted() {
		t.Error("a file that is missing puts the old rules out of force")
	}

	write(t, path, strings.Replace(plant, "name: gateway-a\n", "name: gateway-z\n", 1))
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if admitted() {
		t.Error("a user that was removed is not refused at once")
	}
	write(t, path, plant)
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if !admitted() {
		t.Error("a user that came back is refused")
	}
}
