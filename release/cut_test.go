package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

// repository returns a repository of its own with the present files of this one, in one commit. The
// changelog has a section for the version.
func repository(t *testing.T, version string) tree {
	t.Helper()
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	there := tree{dir: t.TempDir()}.with(
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@localhost", "GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@localhost")
	// The commands of cut find the name here.
	for _, variable := range there.environment {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	files, err := tree{dir: here}.git(t.Context(), "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(files, "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(here, filepath.FromSlash(file)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if file == "CHANGELOG.md" {
			content = []byte(strings.Replace(string(content), "## Unreleased", "## "+strings.TrimPrefix(version, "v")+" - 2030-01-01", 1))
		}
		to := filepath.Join(there.dir, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git(t, there, "init", "--quiet", "--initial-branch=main")
	git(t, there, "add", "--all")
	git(t, there, "commit", "--quiet", "--message", "everything")
	return there
}

func git(t *testing.T, in tree, arguments ...string) string {
	t.Helper()
	out, err := in.git(t.Context(), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// What users do: the command is installed, and the server is added to a program, from a module proxy
// that has the tags and nothing else of the repository.
func TestAReleaseInstallsFromItsTags(t *testing.T) {
	prerequisite.Long(t, "it compiles all modules")
	const version = "v1.2.3"
	repository := repository(t, version)
	before := git(t, repository, "rev-parse", "HEAD")
	tags, err := cut(t.Context(), repository.dir, version, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if after := git(t, repository, "rev-parse", "main"); after != before || git(t, repository, "status", "--porcelain") != "" {
		t.Error("the release has changed the branch or the files")
	}
	commits := strings.Fields(git(t, repository, "rev-parse", version+"^{commit}", "server/"+version+"^{commit}", "cmd/tenure/"+version+"^{commit}", "cluster/cmd/tenure-cluster/"+version+"^{commit}", version+"^{commit}^"))
	if commits[0] != commits[1] || commits[0] != commits[2] || commits[0] != commits[3] || commits[4] != before {
		t.Errorf("the tags are on %q, want one commit on top of %s", commits, before)
	}
	proxy, present := proxyOf(t, repository, tags, version)

	t.Run("go install", func(t *testing.T) {
		user := newUser(t, proxy, present)
		bin := t.TempDir()
		if _, err := user.with("GOBIN="+bin).run(t.Context(), "go", "install", root+"/cmd/tenure@"+version); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(bin, "tenure")
		if runtime.GOOS == "windows" {
			program += ".exe"
		}
		if out, err := user.run(t.Context(), program, "--version"); err != nil || !strings.Contains(out, version) {
			t.Errorf("tenure --version says %q, %v", out, err)
		}
	})
	t.Run("go get", func(t *testing.T) {
		user := newUser(t, proxy, present)
		const program = `package main

import (
	"context"
	"fmt"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

func main() {
	ctx := context.Background()
	s, err := server.Open(ctx, server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error)
	go func() { served <- s.Serve(ctx) }()
	client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{})
	if err != nil {
		panic(err)
	}
	if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
		panic(err)
	}
	client.Close()
	cancel()
	fmt.Println("served:", <-served)
}
`
		for name, content := range map[string]string{"go.mod": "module example.com/user\n\ngo 1.25.0\n", "main.go": program} {
			if err := os.WriteFile(filepath.Join(user.dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range [][]string{{"get", root + "/server@" + version}, {"mod", "tidy"}} {
			if _, err := user.run(t.Context(), "go", step...); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := user.run(t.Context(), "go", "run", "."); err != nil || out != "served: <nil>\n" {
			t.Errorf("the program says %q, %v", out, err)
		}
	})
	t.Run("again", func(t *testing.T) {
		if _, err := cut(t.Context(), repository.dir, version, t.Output()); err == nil || !strings.Contains(err.Error(), "take the next one") {
			t.Errorf("the same version twice: %v", err)
		}
	})
}

// proxyOf makes a directory that serves the modules of the tags as a module proxy does, and returns
// its URL, and the URL of a proxy for all other modules that this machine has.
func proxyOf(t *testing.T, repository tree, tags []string, version string) (proxy, present string) {
	t.Helper()
	cache := filepath.Join(t.TempDir(), "tags")
	from, err := tree{dir: t.TempDir()}.fromTags(t.Context(), repository.dir, cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags {
		dir := strings.TrimSuffix(strings.TrimSuffix(tag, version), "/")
		if _, err := from.run(t.Context(), "go", "mod", "download", (&module{dir: dir}).path()+"@"+version); err != nil {
			t.Fatal(err)
		}
	}
	proxy = filepath.Join(t.TempDir(), "proxy")
	if err := os.CopyFS(filepath.Join(proxy, "github.com", "tenurelock"), os.DirFS(filepath.Join(cache, "cache", "download", "github.com", "tenurelock"))); err != nil {
		t.Fatal(err)
	}
	out, err := tree{dir: "."}.goCommand(t.Context(), "env", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	return "file://" + filepath.ToSlash(proxy), "file://" + filepath.ToSlash(filepath.Join(strings.TrimSpace(out), "cache", "download"))
}

// newUser returns an empty directory, where the go command has an empty module cache and takes
// modules from these proxies and the one of the machine.
func newUser(t *testing.T, proxy, present string) tree {
	t.Helper()
	out, err := tree{dir: "."}.goCommand(t.Context(), "env", "GOPROXY")
	if err != nil {
		t.Fatal(err)
	}
	return tree{dir: t.TempDir()}.with(
		"GOMODCACHE="+t.TempDir(),
		"GOPROXY="+proxy+","+present+","+strings.TrimSpace(out),
		"GONOSUMDB="+root+","+root+"/*", // no checksum database knows a version that is not published
		"GOFLAGS=-modcacherw -trimpath", "GOWORK=off",
		"CGO_ENABLED=0", // as goreleaser compiles, so what one of the two has compiled serves the other
	)
}

func TestWhatCannotBeReleasedIsRefused(t *testing.T) {
	small := func(t *testing.T, changelog string) tree {
		t.Helper()
		there := tree{dir: t.TempDir()}
		git(t, there, "init", "--quiet", "--initial-branch=main")
		if err := os.WriteFile(filepath.Join(there.dir, "CHANGELOG.md"), []byte(changelog), 0o600); err != nil {
			t.Fatal(err)
		}
		return there
	}
	for _, test := range []struct{ name, version, changelog, want string }{
		{"no version", "1.2.3", "", "not a version"},
		{"a shell's surprise", "v1.2.3;rm", "", "not a version"},
		{"a version that needs other paths", "v2.0.0", "", "end with /v2"},
		{"files that are not committed", "v1.2.3", "## 1.2.3 - 2030-01-01\n", "commit or remove first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := cut(t.Context(), small(t, test.changelog).dir, test.version, t.Output()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	t.Run("a changelog without the version", func(t *testing.T) {
		for _, name := range []string{"GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"} {
			t.Setenv(name, "test")
		}
		for _, name := range []string{"GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"} {
			t.Setenv(name, "test@localhost")
		}
		there := small(t, "## Unreleased\n")
		git(t, there, "add", "--all")
		git(t, there, "commit", "--quiet", "--message", "everything")
		if _, err := cut(t.Context(), there.dir, "v1.2.3", t.Output()); err == nil || !strings.Contains(err.Error(), "has no section") {
			t.Error(err)
		}
	})
}

func TestModulesComeAfterThoseThatTheyRequire(t *testing.T) {
	got, err := modules(context.Background(), tree{dir: ".."})
	if err != nil {
		t.Fatal(err)
	}
	var before []string
	for _, m := range got {
		for _, required := range m.requires {
			if !slices.Contains(before, required) {
				t.Errorf("%s comes before %s, which it requires", m.dir, required)
			}
		}
		before = append(before, m.dir)
	}
	if before[0] != "." || !slices.Contains(before, "cluster/cmd/tenure-cluster") || slices.Contains(before, "internal/mutants") || slices.Contains(before, "release") {
		t.Errorf("modules: %q", before)
	}
	if _, err := sorted([]module{{dir: "a", requires: []string{"b"}}, {dir: "b", requires: []string{"a"}}}); err == nil {
		t.Error("modules that require each other have an order")
	}
}
