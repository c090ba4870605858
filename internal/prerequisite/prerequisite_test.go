package prerequisite_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// childEnv names the program that the test of the child process needs.
const childEnv = "PREREQUISITE_TEST_PROGRAM"

// TestOfAChild is a test that needs a program. In any process but a child it needs one that exists.
func TestOfAChild(t *testing.T) {
	name := os.Getenv(childEnv)
	if name == "" {
		name = os.Args[0]
	}
	t.Logf("found %q", prerequisite.Program(t, name, "no-such-package"))
}

func TestATestWithoutItsProgramIsSkippedAloudAndFailsInCI(t *testing.T) {
	const missing = "no-such-program is not installed: apt-get install no-such-package"
	for _, test := range []struct {
		name    string
		ci      []string
		program string
		says    []string
		fails   bool
	}{
		{"elsewhere", nil, "no-such-program", []string{"--- SKIP", "SKIPPED: nothing was tested here. " + missing}, false},
		{"CI is empty", []string{"CI="}, "no-such-program", []string{"--- SKIP"}, false},
		{"CI is 0", []string{"CI=0"}, "no-such-program", []string{"--- SKIP"}, false},
		{"CI is false", []string{"CI=false"}, "no-such-program", []string{"--- SKIP"}, false},
		{"CI is true", []string{"CI=true"}, "no-such-program", []string{"--- FAIL", missing}, true},
		{"CI is 1", []string{"CI=1"}, "no-such-program", []string{"--- FAIL", missing}, true},
		{"CI is the name of a system", []string{"CI=woodpecker"}, "no-such-program", []string{"--- FAIL", missing}, true},
		{"the program is here", []string{"CI=1"}, os.Args[0], []string{"--- PASS", filepath.Base(os.Args[0])}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestOfAChild$", "-test.v")
			child.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CI=") })
			child.Env = append(child.Env, append(test.ci, childEnv+"="+test.program)...)
			output, err := child.CombinedOutput()
			if (err != nil) != test.fails {
				t.Errorf("the child ends with %v", err)
			}
			for _, text := range test.says {
				if !strings.Contains(string(output), text) {
					t.Errorf("the child does not say %q:\n%s", text, output)
				}
			}
		})
	}
}
