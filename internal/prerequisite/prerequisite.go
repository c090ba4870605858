// Package prerequisite says what a test lacks: a program or a right on this machine, or the time. A test
// that was not run looks like one that has passed. So it is skipped with a line that says so. In CI
// it fails if a program or a right is missing.
package prerequisite

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// Missing skips a test that cannot run here. Where the environment variable CI is set, to anything but
// a false value such as 0 or false, the test fails. The text names what is missing, and the cure. Like
// all that ends a test, Missing is for the goroutine of the test.
func Missing(t testing.TB, text string) {
	t.Helper()
	if isSet("CI") { // some systems set it to their own name
		t.Fatal(text)
	}
	t.Skip("SKIPPED: nothing was tested here. " + text)
}

// Program returns the path of a program, from PATH or /usr/sbin, which not every PATH has. Where it is
// missing the test ends as with Missing; debian is the Debian package that has the program.
func Program(t testing.TB, name, debian string) string {
	t.Helper()
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	Missing(t, name+" is not installed: apt-get install "+debian)
	return ""
}

// Long skips a test that takes longer than a newcomer should wait, unless this is a long run. The text
// says how long it takes.
func Long(t testing.TB, text string) {
	t.Helper()
	if !LongRun() {
		t.Skip("SKIPPED: nothing was tested here. " + text + "; LONG_TESTS=1 runs it")
	}
}

// LongRun reports whether the long tests run, and the others with more rounds: where the environment
// variable LONG_TESTS is set, to anything but a false value.
func LongRun() bool {
	return isSet("LONG_TESTS")
}

func isSet(variable string) bool {
	value := os.Getenv(variable)
	if value == "" {
		return false
	}
	set, err := strconv.ParseBool(value)
	return set || err != nil
}
