package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/server/access"
)

// password runs the command and returns what it prints.
func password(stdin io.Reader, arguments ...string) (stdout, stderr string, err error) {
	var out, faults strings.Builder
	command := passwordCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetIn(stdin)
	command.SetOut(&out)
	command.SetErr(&faults)
	command.SetArgs(append([]string{}, arguments...))
	err = command.ExecuteContext(context.Background())
	return out.String(), faults.String(), err
}

func TestTheUserOfAPrintedHashIsAdmitted(t *testing.T) {
	longest := strings.Repeat("x", 72)
	for _, test := range []struct{ name, stdin, password string }{
		{"a line", "let me in\n", "let me in"},
		{"a line without its end", "let me in", "let me in"},
		{"a line as Windows ends it", "let me in\r\n", "let me in"},
		{"the first of several lines", "let me in\nor not\n", "let me in"},
		{"spaces around it are part of it", "  let me in \n", "  let me in "},
		{"what is not ASCII", "gr\u00fc\u00df\n", "gr\u00fc\u00df"},
		{"the longest", longest + "\r\n", longest},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, err := password(strings.NewReader(test.stdin), "--cost", "4")
			if err != nil || stderr != "" || strings.Count(stdout, "\n") != 1 {
				t.Fatalf("%v; printed %q and %q", err, stdout, stderr)
			}
			users, err := access.Parse(fmt.Appendf(nil, "users:\n  - name: a\n    password: %s", stdout))
			if err != nil {
				t.Fatal(err)
			}
			if err := users.Authenticate(access.Credentials{User: "a", Password: []byte(test.password)}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAHashIsInJSON(t *testing.T) {
	stdout, _, err := password(strings.NewReader("let me in\n"), "--cost", "4", "--json")
	hash, found := strings.CutPrefix(stdout, `{"hash":"`)
	hash, ended := strings.CutSuffix(hash, "\"}\n")
	if err != nil || !found || !ended || bcrypt.CompareHashAndPassword([]byte(hash), []byte("let me in")) != nil {
		t.Errorf("%v; printed %q", err, stdout)
	}
}

func TestAHashThatCannotBePrintedIsAnError(t *testing.T) {
	command := passwordCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetIn(strings.NewReader("let me in\n"))
	full := errors.New("the disk is full")
	reader, writer := io.Pipe()
	reader.CloseWithError(full)
	command.SetOut(writer)
	command.SetArgs([]string{"--cost", "4"})
	if err := command.ExecuteContext(t.Context()); !errors.Is(err, full) {
		t.Errorf("Execute: %v, want %v", err, full)
	}
}

func TestPasswordUsesTheGivenCost(t *testing.T) {
	for _, test := range []struct {
		name      string
		arguments []string
		want      int
	}{
		{"none", nil, 10},
		{"the lowest", []string{"--cost", "4"}, 4},
		{"another", []string{"--cost=5"}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, _, err := password(strings.NewReader("let me in\n"), test.arguments...)
			if err != nil {
				t.Fatal(err)
			}
			if cost, err := bcrypt.Cost([]byte(strings.TrimSpace(stdout))); cost != test.want || err != nil {
				t.Errorf("cost %d, %v; want %d", cost, err, test.want)
			}
		})
	}
}

func TestPasswordRefusesWrongInputAndNamesTheCure(t *testing.T) {
	for _, test := range []struct {
		name      string
		stdin     io.Reader
		arguments []string
		want      string
	}{
		{"nothing", strings.NewReader(""), nil, "no password"},
		{"an empty line", strings.NewReader("\nlet me in\n"), nil, "no password"},
		{"a byte too many", strings.NewReader(strings.Repeat("x", 73) + "\n"), nil, "only 72 bytes"},
		{"no end", strings.NewReader(strings.Repeat("x", 1<<20)), nil, "only 72 bytes"},
		{"an input that breaks", iotest.ErrReader(errors.New("pipe burst")), nil, "standard input: pipe burst"},
		{"a cost that is too low", strings.NewReader("x\n"), []string{"--cost", "3"}, "choose 4 to 16"},
		{"a cost that is too high", strings.NewReader("x\n"), []string{"--cost", "17"}, "choose 4 to 16"},
		{"the password as an argument, where others can see it", strings.NewReader("x\n"), []string{"x"}, "unknown command"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, _, err := password(test.stdin, test.arguments...)
			if err == nil || stdout != "" || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q; printed %q", err, test.want, stdout)
			}
		})
	}
}
