package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// repository makes the working directory one with a module and a package p in it.
func repository(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.25.0\n",
		"p/p.go": `package p

import "errors"

type ring[T any] struct{ held []T }

func (r *ring[T]) full(n int) bool { return len(r.held) >= n }

// Check says whether n is in range.
func Check(n int) error {
	if n < 0 || n > limit { // too far
		return errors.New("range")
	}
	n++
	n--
	switch n {
	case 7:
		return errors.New(
			"seven",
		)
	}
	return nil
}

const limit = 9
`,
		"p/p_test.go": `package p

import "testing"

func TestRange(t *testing.T) {
	if Check(-1) == nil || Check(10) == nil || Check(9) != nil {
		t.Error("range")
	}
}

func TestFull(t *testing.T) {
	if !(&ring[int]{}).full(0) {
		panic("not full")
	}
}
`,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMutantIsKilledOrItIsSaidWhyNot(t *testing.T) {
	repository(t)
	for _, test := range []struct {
		name, in, run string
		changes       string
		want          verdict
		says          string
	}{
		{"an expression", "Check", "Range", "- n < 0\n+ false", killed, ""},
		{"a generic method, and a panic", "ring.full", "Full", "- len(r.held) >= n\n+ false", killed, ""},
		{"white space does not count", "Check", "Range", "- n<0||\n- n>limit\n+ false", killed, ""},
		{"nor do comments and trailing commas", "Check", "Range", "- return errors.New(\"seven\") // a comment\n+ return nil", survived, "-run Range"},
		{"a deletion", "Check", "Range", "- if n < 0 || n > limit {\n- return errors.New(\"range\")\n- }", killed, ""},
		{"two changes that overlap", "Check", "Range", "- n++\n+ n--\n- n++\n- n--\n+ n += 2", notFound, "overlap"},
		{"a binary expression in place of another", "Check", "Range", "- n > limit\n+ n > 8 && n > 7", killed, ""},
		{"a constant", "limit", "Range", "- 9\n+ 8", killed, ""},
		{"what occurs twice", "Check", "Range", "- errors.New\n+ nil", notFound, "occurs 2 times"},
		{"a function that was renamed", "check", "Range", "- n < 0\n+ false", notFound, "p declares no check"},
		{"a replacement that is not Go", "Check", "Range", "- n < 0\n+ n <", notFound, "not Go"},
		{"a replacement that does not compile", "Check", "Range", "- n < 0\n+ undefined", notCompiled, "undefined: undefined"},
		{"a test that was renamed", "Check", "Ranges", "- n < 0\n+ false", noTest, "no test of ./p matches Ranges"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mutants, err := parseFile("== m\nguards invariant 1\nin p " + test.in + "\ntest ./p -run " + test.run + "\n" + test.changes + "\n")
			if err != nil {
				t.Fatal(err)
			}
			v, detail := try(t.Context(), newTree(), mutants[0], false)
			if v != test.want || !strings.Contains(detail, test.says) {
				t.Errorf("%s: %s, want %s and %q", v, detail, test.want, test.says)
			}
			wantChecked := found
			if test.want == notFound || test.want == noTest {
				wantChecked = test.want
			}
			if v, detail := try(t.Context(), newTree(), mutants[0], true); v != wantChecked {
				t.Errorf("-check: %s %s, want %s", v, detail, wantChecked)
			}
		})
	}
}

func TestAMutantThatSaysTooLittleIsRefused(t *testing.T) {
	const good = "== m\nguards invariant 1\nin p f\ntest ./p -run T\n- a\n+ b\n"
	if mutants, err := parseFile("a comment\n\n" + good); err != nil || len(mutants) != 1 {
		t.Fatal(mutants, err)
	}
	for _, test := range []struct{ old, new string }{
		{"guards invariant 1\n", ""}, {"invariant 1", "rule 1"}, {"in p f\n", ""}, {"in p f", "in p"},
		{"-run T", ""}, {"- a\n", ""}, {"- a\n+ b\n", ""}, {"test ", "tests "},
	} {
		if _, err := parseFile(strings.Replace(good, test.old, test.new, 1)); err == nil {
			t.Errorf("%q in place of %q: %v", test.new, test.old, err)
		}
	}
}

// A module with a workspace of its own is not in the one of the root.
func TestAPackageIsTestedInItsOwnWorkspace(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, folder := range []string{"a/b", "outer/inner/p"} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.work", "outer/go.work", "outer/inner/go.work"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for tested, want := range map[string][2]string{
		".":               {".", "."},
		"./a/b":           {".", "./a/b"},
		"./outer":         {"outer", "./."},
		"./outer/p":       {"outer", "./p"},
		"./outer/inner/p": {filepath.Join("outer", "inner"), "./p"},
	} {
		if workspace, name := workspaceOf(tested); workspace != want[0] || name != want[1] {
			t.Errorf("%s: %s in %s, want %s in %s", tested, name, workspace, want[1], want[0])
		}
	}
}
