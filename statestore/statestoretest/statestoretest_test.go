package statestoretest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/statestore"
)

// A recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestAWrongScriptFails(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"all true", "a KEYNOTIFY k\n= +OK @-\na SET k v\n= +OK @v\n! a k SET VALUE v @v\na GET k\n= \"$ v\" @v", ""},
		{"another reply", "a GET k\n= $-1\na DEL k\n= :1", `line 4: the reply is ":0"; want ":1"`},
		{"no version where one is wanted", "a GET k\n= $-1 @*", "want one"},
		{"no version to be named", "a GET k\n= $-1 @v", "want one"},
		{"a version where none is wanted", "a SET k v\n= +OK @-", "want none"},
		{"another version", "a SET k v\n= +OK @v\na SET k v\n= +OK @v", "the version is"},
		{"a version that is not above", "a SET k v\n= +OK @v\na GET k\n= \"$ v\" @>v", "want one above"},
		{"another wall clock and counter", "a SET k v\n= +OK @+0s:2", "want 1696374425000:2:"},
		{"a version from a minute ahead", "a SET k v ts=+60s:0:a\n= +OK @now", "want the store's time of day"},
		{"a notification is missing", "a KEYNOTIFY k\n= +OK\na GET k\n= $-1\n! a k DELETE", "did not get"},
		{"a notification too many", "a KEYNOTIFY k\n= +OK\na SET k v\n= +OK", "not in the script"},
		{"a notification after time passed", "a KEYNOTIFY k\n= +OK\na SET k v PX 1\n= +OK\n! a k SET VALUE v\npass 1ms", "not in the script"},
		{"another notification", "a KEYNOTIFY k\n= +OK\na SET k v\n= +OK\n! a k SET VALUE w", "want \"k SET VALUE w\""},
		{"another version of a notification", "a KEYNOTIFY k\n= +OK\na SET k v\n= +OK @v\n! a k SET VALUE v @+5s:1", "the version is"},
		{"a reply without request", "= +OK", "follows no request"},
		{"a request without reply", "a GET k\na GET k\n= $-1", "a reply is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steps, err := parseScript(test.script)
			if err != nil {
				t.Fatal(err)
			}
			r := &recorder{TB: t}
			if err := newPlayer(r, NewMachine(t, statestore.Options{})).play(steps); err != nil {
				r.failures = append(r.failures, err.Error())
			}
			got := strings.Join(r.failures, "\n")
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("failures %q; want %q", got, test.want)
			}
		})
	}
}

func TestAScriptThatCannotBeReadSaysWhere(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"a duration", "a GET k\n= $-1\npass soon", "line 3"},
		{"a literal without end", `a SET "k v`, "line 1"},
		{"a client alone", "a", "no request"},
		{"a notification of nothing", "! a k", "no request"},
	} {
		if _, err := parseScript(test.script); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.name, err, test.want)
		}
	}
	for _, test := range []struct{ name, text, want string }{
		{"no section", "== sentence\na GET k\n= $-1", "no section"},
		{"an option that does not exist", "== 2 | s\n-- fast\n", `unknown option "fast"`},
		{"a number that is none", "== 2 | s\n-- max-keys=many\n", "many"},
		{"a script", "== 2 | s\nnonsense\n", "line 1"},
	} {
		if _, err := parseRows(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.name, err, test.want)
		}
	}
}

// A trace is itself a script, and its trace is the same.
func TestATraceIsAScript(t *testing.T) {
	script := "a KEYNOTIFY \"\\x00\"\na SET \"\\x00\" \"\" PX 5\n= +OK @first\na SET l v ft=@first\npass 5ms\ndrop a\na GET \"\\x00\"\n"
	trace, err := Trace(t, NewMachine(t, statestore.Options{}), script)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Trace(t, NewMachine(t, statestore.Options{}), trace); err != nil || again != trace {
		t.Errorf("%v: first\n%s\nthen\n%s", err, trace, again)
	}
	if !strings.Contains(trace, "@first=1696374425000:1:StateStore") {
		t.Errorf("the version has lost its name:\n%s", trace)
	}
}

func ExampleTrace() {
	machine := NewMachine(&recorder{}, statestore.Options{})
	trace, err := Trace(&recorder{}, machine, "node-a SET lock node-a:1 NEX PX 2000\nnode-b SET lock node-b:1 NEX PX 2000\npass 2s\nnode-b GET lock")
	fmt.Println(trace, err)
	// Output:
	// node-a SET lock node-a:1 NEX PX 2000
	// = +OK @1696374425000:1:StateStore
	// node-b SET lock node-b:1 NEX PX 2000
	// = :-1 @1696374425000:1:StateStore
	// pass 2s
	// node-b GET lock
	// = $-1
	//  <nil>
}
