package tenure_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
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
		folder := path.Dir(filepath.ToSlash(name))
		found = append(found, [3]string{folder, kind, folder}) // a package that imports nothing is one too
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if below, ok := strings.CutPrefix(imported, modulePath+"/"); ok && below != folder {
				found = append(found, [3]string{folder, kind, below})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A layer is a line of the table at the top of CONTRIBUTING.md.
var layer = regexp.MustCompile("(?m)^\\| (\\d+) \\| (`[^|]+`) \\|")

// layers returns the layer of each path that CONTRIBUTING.md names.
func layers(t *testing.T) map[string]int {
	t.Helper()
	content, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, line := range layer.FindAllStringSubmatch(string(content), -1) {
		number, _ := strconv.Atoi(line[1])
		for name := range strings.SplitSeq(line[2], ", ") {
			found[strings.Trim(name, "`")] = number
		}
	}
	return found
}

// layerOf returns the layer of a package: of its path, or of the nearest path above that has one. 0 is none.
func layerOf(layers map[string]int, name string) int {
	for ; name != "."; name = path.Dir(name) {
		if number, ok := layers[name]; ok {
			return number
		}
	}
	return 0
}

func TestImportsPointDown(t *testing.T) {
	layers := layers(t)
	seen := make(map[string]bool)
	for _, i := range imports(t) {
		name, kind, imported := i[0], i[1], i[2]
		if !seen[name] {
			seen[name] = true
			if name != "." && layerOf(layers, name) == 0 {
				t.Errorf("%s has no layer: add it to the table at the top of CONTRIBUTING.md", name)
			}
		}
		// A test may use the package that its own package serves, so it is bound only by its module.
		if kind == "code" && layerOf(layers, imported) > layerOf(layers, name) {
			t.Errorf("%s (layer %d) imports %s (layer %d): imports point down",
				name, layerOf(layers, name), imported, layerOf(layers, imported))
		}
	}
	for name := range layers {
		isAbove := func(seen string) bool { return seen == name || strings.HasPrefix(seen, name+"/") }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), isAbove) {
			t.Errorf("CONTRIBUTING.md has a layer for %s, which has no Go file", name)
		}
	}
}

// The list of files shows where to look only while it is short.
func TestPackagesHaveFewFiles(t *testing.T) {
	own := map[string]int{"server": 26, "lease": 43, "statestore": 39} // a model of the walk needs what the package does not export; one state machine
	seen := make(map[string]bool)
	for _, i := range imports(t) {
		if name := i[0]; !seen[name] {
			seen[name] = true
			limit := 36
			if module, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"server", "cluster", "cmd", "examples"}, module) {
				limit = 40
			}
			if most, ok := own[name]; ok {
				limit = most
			}
			files, err := filepath.Glob(filepath.Join(filepath.FromSlash(name), "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			if len(files) >= limit {
				t.Errorf("%s has %d Go files", name, len(files))
			}
		}
	}
}
