package release

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

const root = "github.com/tenurelock/tenure"

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

// What users do: the command is installed, and the server is added to a program, from a module proxy
// that has the tags and nothing else of the repository.
func TestAReleaseInstallsFromItsTags(t *testing.T) {
	prerequisite.Long(t, "it compiles all modules")
	const version = "v1.2.3"
	here := shell{dir: "../.."}
	files := make(map[string][]byte)
	for file := range strings.SplitSeq(here.run(t, "git", "ls-files", "--cached", "--others", "--exclude-standard"), "\n") {
		content, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(file)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		files[file] = content
	}
	files["CHANGELOG.md"] = []byte("## 1.2.3 - 2030-01-01\n")
	there, cut := repository(t, files)
	before := there.run(t, "git", "rev-parse", "HEAD")
	t.Log(there.run(t, cut, version))
	if after := there.run(t, "git", "rev-parse", "main"); after != before || there.run(t, "git", "status", "--porcelain") != "" {
		t.Error("the release has changed the branch or the files")
	}
	tags := strings.Fields(there.run(t, "git", "tag"))
	if modules := strings.Count(here.run(t, "git", "ls-files", "go.mod", "*/go.mod"), "go.mod") - unreleased(t); len(tags) != modules {
		t.Errorf("tags %q of %d modules", tags, modules)
	}
	for _, tag := range tags {
		if parent := there.run(t, "git", "rev-parse", tag+"^{commit}^"); parent != before {
			t.Errorf("the tag %s is on a commit on top of %s, not of %s", tag, parent, before)
		}
	}

	user := newUser(t, proxyOf(t, there, tags, version))
	user.run(t, "go", "install", root+"/cmd/tenure@"+version)
	if out := user.run(t, filepath.Join(user.dir, "bin", "tenure"), "--version"); !strings.Contains(out, version) {
		t.Errorf("tenure --version says %q", out)
	}
	program, err := os.ReadFile(filepath.Join("testdata", "user.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(user.dir, "main.go"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	user.run(t, "go", "mod", "init", "example.com/user")
	user.run(t, "go", "get", root+"/server@"+version)
	user.run(t, "go", "mod", "tidy")
	if out := user.run(t, "go", "run", "."); !strings.HasSuffix(out, "served: <nil>") {
		t.Errorf("the program says %q", out)
	}
	if out, err := there.try(t, cut, version); err == nil || !strings.Contains(out, "take the next one") {
		t.Errorf("the same version twice: %s, %v", out, err)
	}
}

// unreleased returns how many modules of the repository get no tag, because they are its tools.
func unreleased(t *testing.T) int {
	t.Helper()
	const tools = "bench tools cmd/tenure/internal/admin/browsertest"
	count := 0
	for dir := range strings.FieldsSeq(tools) {
		if _, err := os.Stat(filepath.Join("../..", filepath.FromSlash(dir), "go.mod")); err == nil {
			count++
		}
	}
	return count
}

// proxyOf makes a directory that serves the modules of the tags as a module proxy does, and returns its URL.
func proxyOf(t *testing.T, there shell, tags []string, version string) string {
	t.Helper()
	cache := filepath.Join(t.TempDir(), "tags")
	from := shell{t.TempDir(), []string{
		"GOMODCACHE=" + cache, "GOPROXY=" + proxies(t), "GOPRIVATE=" + root + "," + root + "/*", "GOFLAGS=-modcacherw", "GOWORK=off",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + there.dir + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + root}}
	for _, tag := range tags {
		from.run(t, "go", "mod", "download", path.Join(root, strings.TrimSuffix(tag, version))+"@"+version)
	}
	proxy := filepath.Join(t.TempDir(), "proxy")
	ours := filepath.Join("github.com", "tenurelock")
	if err := os.CopyFS(filepath.Join(proxy, ours), os.DirFS(filepath.Join(cache, "cache", "download", ours))); err != nil {
		t.Fatal(err)
	}
	return "file://" + proxy
}

// proxies are where other modules come from: what this machine has, then as before.
func proxies(t *testing.T) string {
	t.Helper()
	out := strings.Fields(shell{}.run(t, "go", "env", "GOMODCACHE", "GOPROXY"))
	return "file://" + filepath.Join(out[0], "cache", "download") + "," + out[1]
}

// newUser returns an empty directory, with an empty module cache. No checksum database knows a version that is not
// published.
func newUser(t *testing.T, proxy string) shell {
	t.Helper()
	dir := t.TempDir()
	return shell{dir, []string{
		"GOBIN=" + filepath.Join(dir, "bin"), "GOMODCACHE=" + t.TempDir(), "GOPROXY=" + proxy + "," + proxies(t),
		"GONOSUMDB=" + root + "," + root + "/*", "GOFLAGS=-modcacherw -trimpath", "GOWORK=off",
		"CGO_ENABLED=0", // as goreleaser compiles, so what one of the two has compiled serves the other
	}}
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
