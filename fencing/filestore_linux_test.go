package fencing_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

// The tests of lost power use a model of a disk. Here the calls of a real process are in the
// order that the model assumes: the content is synced before it has its name, and the name
// before the token is reported.
func TestAFileStoreSyncsItsFileAndItsDirectoryBeforeItReportsAToken(t *testing.T) {
	strace := prerequisite.Program(t, "strace", "strace")
	dir := t.TempDir()
	log, path := filepath.Join(dir, "log"), filepath.Join(dir, "state", "fence")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	output := runChild(t, childCommand(t, path, strace, "-f", "-qq", "-y", "-o", log, "-e", "trace=openat,write,fsync,rename,renameat,renameat2"))
	if strings.Contains(output, "strace: ") {
		prerequisite.Missing(t, "this process may not trace another: "+output)
	}
	if !strings.HasSuffix(output, "durable 3\n") {
		t.Fatal(output)
	}
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	patterns := []struct {
		name string
		call *regexp.Regexp
	}{
		{"create", regexp.MustCompile(`openat\(.*fence\.new", O_WRONLY\|O_CREAT\|O_EXCL.*, 0600`)},
		{"write", regexp.MustCompile(`write\(\d+<.*/fence\.new>, "tenure fence 1`)},
		{"sync file", regexp.MustCompile(`fsync\(\d+<.*/fence\.new>`)},
		{"rename", regexp.MustCompile(`rename.*fence\.new".*fence"`)},
		{"sync directory", regexp.MustCompile(`fsync\(\d+<.*/state>`)},
		{"report", regexp.MustCompile(`write\(1<.*>, "durable`)},
	}
	for line := range strings.Lines(string(content)) {
		for _, known := range patterns {
			if known.call.MatchString(line) {
				calls = append(calls, known.name)
			}
		}
	}
	want := slices.Repeat([]string{"create", "write", "sync file", "rename", "sync directory", "report"}, 1+childLast)
	if !slices.Equal(calls, want) {
		t.Errorf("the calls are %q\nwant %q\n%s", calls, want, content)
	}
}
