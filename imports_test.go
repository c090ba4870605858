package tenure_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/tenurelock/tenure"

// imports returns what each package of the repository imports from the repository: the
// package's directory, whether a test imports it, the other's directory.
func imports(t *testing.T) (found [][3]string) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (isProduct(name) || entry.Name() == "testdata" || name != "." && strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		kind := "code"
		if strings.HasSuffix(name, "_test.go") {
			kind = "test"
		}
		room := path.Dir(filepath.ToSlash(name))
		found = append(found, [3]string{room, kind, room}) // a package that imports nothing is one too
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if below, ok := strings.CutPrefix(imported, modulePath+"/"); ok && below != room {
				found = append(found, [3]string{room, kind, below})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// ranks returns the rank of each room, by the table at the top of CONTRIBUTING.md.
func ranks(t *testing.T) map[string]int {
	t.Helper()
	content, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	ranks := make(map[string]int)
	last := 0
	for _, row := range regexp.MustCompile("(?m)^\\| (\\d+) \\| `([^`]+)` \\| [^|]+ \\|$").FindAllStringSubmatch(string(content), -1) {
		if _, twice := ranks[row[2]]; twice {
			t.Errorf("CONTRIBUTING.md ranks %s twice", row[2])
		}
		ranks[row[2]], _ = strconv.Atoi(row[1])
		if ranks[row[2]] < last {
			t.Errorf("CONTRIBUTING.md ranks %s after rooms of a higher rank", row[2])
		}
		last = ranks[row[2]]
	}
	return ranks
}

func TestImportsPointDown(t *testing.T) {
	ranks := ranks(t)
	seen := make(map[string]bool)
	for _, i := range imports(t) {
		room, kind, imported := i[0], i[1], i[2]
		if !seen[room] {
			seen[room] = true
			if _, ok := ranks[room]; !ok && room != "." {
				t.Errorf("%s has no rank: add it to the table at the top of CONTRIBUTING.md", room)
			}
		}
		// A test may use the room that its own package serves, so it is bound only by its module.
		if kind == "code" && room != imported && ranks[imported] >= ranks[room] {
			t.Errorf("%s (rank %d) imports %s (rank %d): imports point down", room, ranks[room], imported, ranks[imported])
		}
	}
	for room := range ranks {
		if !seen[room] {
			t.Errorf("CONTRIBUTING.md ranks %s, which has no Go file", room)
		}
	}
}

// The internal packages of the root module are visible in the other modules too, because
// their paths begin alike. Each use is a decision.
func TestImportsOfInternalPackagesByOtherModulesAreListed(t *testing.T) {
	content, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(internal/[^`]+)` \\| ([^|]+) \\| [^|]+ \\|$").FindAllStringSubmatch(string(content), -1) {
		listed[row[1]] = row[2]
	}
	used := make(map[string][]string)
	for _, i := range imports(t) {
		room, imported := i[0], i[2]
		module, _, _ := strings.Cut(room, "/")
		if module == "cmd" {
			module = "cmd/tenure"
		}
		if !slices.Contains([]string{"server", "cluster", "cmd/tenure", "contrib", "examples", "bench"}, module) || !strings.HasPrefix(imported, "internal/") {
			continue
		}
		if name := "`" + module + "`"; !slices.Contains(used[imported], name) {
			used[imported] = append(used[imported], name)
		}
	}
	for imported, modules := range used {
		slices.Sort(modules)
		if want := strings.Join(modules, ", "); listed[imported] != want {
			t.Errorf("%s is used by %s; CONTRIBUTING.md says %q", imported, want, listed[imported])
		}
	}
	for imported := range listed {
		if used[imported] == nil {
			t.Errorf("CONTRIBUTING.md says that other modules use %s, but none does", imported)
		}
	}
}

// The list of files shows where to look only while it is short.
func TestRoomsHaveFewFiles(t *testing.T) {
	design, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	for room := range ranks(t) {
		limit := 36
		if module, _, _ := strings.Cut(room, "/"); slices.Contains([]string{"server", "cluster", "cmd", "examples"}, module) {
			limit = 40
		}
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(room), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		isException := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(room) + "` \\| \\d+ \\|").Match(design)
		if len(files) >= limit && !isException {
			t.Errorf("%s has %d Go files, and is no exception of docs/design.md", room, len(files))
		}
	}
}
