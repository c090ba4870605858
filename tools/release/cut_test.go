package release

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

// A shell runs commands in a directory, with more variables than the process has.
type shell struct {
	dir         string
	environment []string
}

func (s shell) try(t *testing.T, program string, arguments ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.environment...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (s shell) run(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	out, err := s.try(t, program, arguments...)
	if err != nil {
		t.Fatalf("%s %q: %v: %s", program, arguments, err, out)
	}
	return out
}

// repository returns a repository with these files, and the script that releases it.
func repository(t *testing.T, files map[string][]byte) (there shell, cut string) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		prerequisite.Missing(t, "bash is not installed")
	}
	cut, err := filepath.Abs("cut")
	if err != nil {
		t.Fatal(err)
	}
	there = shell{t.TempDir(), []string{
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@localhost", "GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@localhost"}}
	for file, content := range files {
		to := filepath.Join(there.dir, filepath.FromSlash(file))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	there.run(t, "git", "init", "--quiet", "--initial-branch=main")
	there.run(t, "git", "add", "--all")
	there.run(t, "git", "commit", "--quiet", "--message", "everything")
	return there, cut
}

// The script itself finds the packages of each module through its tag, as users do.
func TestAReleaseTagsEachModuleAndChangesNoBranch(t *testing.T) {
	prerequisite.Long(t, "it loads all modules")
	const version = "v1.2.3"
	here := shell{dir: "../.."}
	files := map[string][]byte{"CHANGELOG.md": []byte("## 1.2.3 - 2030-01-01\n")}
	for file := range strings.SplitSeq(here.run(t, "git", "ls-files", "--cached", "--others", "--exclude-standard"), "\n") {
		content, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(file)))
		if err == nil && files[file] == nil {
			files[file] = content
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) { // removed, and not committed yet
			t.Fatal(err)
		}
	}
	there, cut := repository(t, files)
	before := there.run(t, "git", "rev-parse", "HEAD")
	t.Log(there.run(t, cut, version))
	if after := there.run(t, "git", "rev-parse", "main"); after != before || there.run(t, "git", "status", "--porcelain") != "" {
		t.Error("the release has changed the branch or the files")
	}
	tags := strings.Fields(there.run(t, "git", "tag"))
	const tools = 3 // bench, tools, cmd/tenure/internal/admin/browsertest
	if modules := strings.Count(here.run(t, "git", "ls-files", "go.mod", "*/go.mod"), "go.mod"); len(tags) != modules-tools {
		t.Errorf("tags %q of %d modules", tags, modules)
	}
	for _, tag := range tags {
		if parent := there.run(t, "git", "rev-parse", tag+"^{commit}^"); parent != before {
			t.Errorf("the tag %s is on a commit on top of %s, not of %s", tag, parent, before)
		}
	}
	if out, err := there.try(t, cut, version); err == nil || !strings.Contains(out, "take the next one") {
		t.Errorf("the same version twice: %s, %v", out, err)
	}
}

func TestWhatCannotBeReleasedIsRefused(t *testing.T) {
	for _, test := range []struct{ name, version, changelog, want string }{
		{"no version", "1.2.3", "", "not a version"},
		{"a shell's surprise", "v1.2.3;rm", "", "not a version"},
		{"a version that needs other paths", "v2.0.0", "", "end with /v2"},
		{"files that are not committed", "v1.2.3", "uncommitted", "commit or remove first"},
		{"a changelog without the version", "v1.2.3", "## Unreleased\n", "has no section"},
	} {
		t.Run(test.name, func(t *testing.T) {
			there, cut := repository(t, map[string][]byte{"CHANGELOG.md": []byte(test.changelog)})
			if test.changelog == "uncommitted" {
				if err := os.WriteFile(filepath.Join(there.dir, "new"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := there.try(t, cut, test.version); err == nil || !strings.Contains(out, test.want) {
				t.Errorf("%s, %v; want %q", out, err, test.want)
			}
		})
	}
}
