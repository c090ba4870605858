package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

func hashed(t *testing.T, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

func TestAGoodPasswordIsRememberedUntilTheFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	write := func(password string) {
		t.Helper()
		text := "users:\n  - name: a\n    clients: [a-*]\n    password: " + hashed(t, password) + "\n  - name: ab\n    password: " + hashed(t, "c") + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("bc")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	good := Credentials{Client: "a-1", User: "a", Password: []byte("bc")}
	quickly := func(when string, c Credentials, want bool) {
		t.Helper()
		if known, err := f.AuthenticateQuickly(c); known != want || err != nil {
			t.Errorf("%s: known %v, %v; want %v", when, known, err, want)
		}
	}
	quickly("at first", good, false)
	if err := f.Authenticate(good); err != nil {
		t.Fatal(err)
	}
	quickly("after a success", good, true)
	for name, other := range map[string]Credentials{
		"another password":              {Client: "a-1", User: "a", Password: []byte("bd")},
		"another user":                  {Client: "a-1", User: "b", Password: []byte("bc")},
		"the same bytes, cut elsewhere": {Client: "a-1", User: "ab", Password: []byte("c")},
		"a client id of another":        {Client: "b-1", User: "a", Password: []byte("bc")},
	} {
		quickly(name, other, false)
	}
	if f.Authenticate(Credentials{Client: "a-1", User: "a", Password: []byte("bd")}) == nil {
		t.Error("a wrong password is admitted")
	}
	quickly("after a wrong password", good, true)
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	quickly("after the file was read again", good, false)
	write("changed")
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	quickly("after the password was changed", good, false)
	if f.Authenticate(good) == nil {
		t.Error("the old password is admitted")
	}
}

func TestWhatNeedsNoComparisonIsAnsweredQuickly(t *testing.T) {
	f := mustParse(t, plant)
	for _, test := range []struct {
		name  string
		given Credentials
		ok    bool
	}{
		{"a certificate", Credentials{Client: "press-7", User: "CN=press-7,O=Plant", Certified: true}, true},
		{"a certificate of a stranger", Credentials{Client: "press-7", User: "CN=press-8", Certified: true}, false},
		{"no name", Credentials{Password: []byte("x")}, false},
		{"no password", Credentials{User: "auditor"}, false},
		{"a password that is too long", Credentials{User: "auditor", Password: make([]byte, maxPassword+1)}, false},
	} {
		if known, err := f.AuthenticateQuickly(test.given); !known || (err == nil) != test.ok {
			t.Errorf("%s: known %v, %v", test.name, known, err)
		}
	}
	if known, _ := f.AuthenticateQuickly(Credentials{User: "a stranger", Password: []byte("x")}); known {
		t.Error("a stranger is told at once")
	}
}

func TestARefusalIsShortHoweverLongTheNames(t *testing.T) {
	long := strings.Repeat("x\n", 30_000)
	err := mustParse(t, plant).Authenticate(Credentials{Client: long, User: long, Password: []byte("x")})
	if err == nil || len(err.Error()) > 1000 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%d bytes", len(err.Error()))
	}
}
