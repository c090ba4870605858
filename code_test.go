package tenure_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// repository returns the texts of the files of the repository, by their paths.
func repository(t *testing.T) map[string]string {
	t.Helper()
	files, err := readRepository()
	if err != nil || len(files) < 500 {
		t.Fatalf("%d files were read: %v", len(files), err)
	}
	return files
}

var readRepository = sync.OnceValues(func() (map[string]string, error) {
	files := make(map[string]string)
	return files, filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		made := name == "bin" || name == "dist" // by the Makefile, perhaps while tests run
		switch {
		case err == nil && (made || entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".ci"):
			return filepath.SkipDir
		case err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".md", ".txt", ".yaml", ".conf", ".service", ""}, filepath.Ext(name)):
			return err
		}
		content, err := os.ReadFile(name)
		if !bytes.ContainsRune(content, 0) {
			files[filepath.ToSlash(name)] = string(content)
		}
		return err
	})
})

// eachGoFile parses the Go files of the repository.
func eachGoFile(t *testing.T, mode parser.Mode, visit func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	for name, text := range repository(t) {
		if path.Ext(name) == ".go" && !strings.Contains(name, "testdata/") {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, name, text, mode|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			visit(name, files, file)
		}
	}
}

// layers returns the layer of each path in the table at the top of CONTRIBUTING.md.
func layers(t *testing.T) map[string]int {
	t.Helper()
	found := make(map[string]int)
	for _, line := range regexp.MustCompile("(?m)^\\| (\\d+) \\| (`[^|]+`) \\|").FindAllStringSubmatch(repository(t)["CONTRIBUTING.md"], -1) {
		for name := range strings.SplitSeq(line[2], ", ") {
			found[strings.Trim(name, "`")], _ = strconv.Atoi(line[1])
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
	eachGoFile(t, parser.ImportsOnly, func(name string, _ *token.FileSet, file *ast.File) {
		folder := path.Dir(name)
		if folder != "." && layerOf(layers, folder) == 0 {
			t.Errorf("%s has no layer: add it to the table at the top of CONTRIBUTING.md", folder)
		}
		// A test may use the package that its own package serves, so it is bound only by its module.
		for _, spec := range file.Imports {
			imported, below := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), "github.com/tenurelock/tenure/")
			if below && !strings.HasSuffix(name, "_test.go") && layerOf(layers, imported) > layerOf(layers, folder) {
				t.Errorf("%s (layer %d) imports %s (layer %d): imports point down",
					folder, layerOf(layers, folder), imported, layerOf(layers, imported))
			}
		}
	})
	for name := range layers {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("CONTRIBUTING.md has a layer for a path that is not there: %v", err)
		}
	}
}

// The list of files shows where to look only while it is short.
func TestPackagesHaveFewFiles(t *testing.T) {
	few := map[string]int{"server": 25, "lease": 36, "statestore": 38} // a model of the walk needs what the package does not export; one state machine
	files := make(map[string]int)
	eachGoFile(t, parser.PackageClauseOnly, func(name string, _ *token.FileSet, _ *ast.File) { files[path.Dir(name)]++ })
	for folder, n := range files {
		limit := 35
		if module, _, _ := strings.Cut(folder, "/"); slices.Contains([]string{"server", "cluster", "cmd", "examples"}, module) {
			limit = 39
		}
		if most, ok := few[folder]; ok {
			limit = most
		}
		if n > limit {
			t.Errorf("%s has %d Go files", folder, n)
		}
	}
}

// A team that embeds a lease in a gateway audits its dependencies, and a consumer sees the direct ones in its own
// go.mod. So the server, the command and the examples are modules of their own.
func TestTheModuleNeedsThreeOthersTestsIncluded(t *testing.T) {
	const want = "github.com/cenkalti/backoff/v4 github.com/eclipse/paho.golang golang.org/x/sync"
	for _, arguments := range [][]string{
		{"-deps", "-test", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "./..."},
		{"-m", "-f", "{{if not .Indirect}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "all"},
	} {
		list := exec.Command("go", append([]string{"list"}, arguments...)...)
		list.Env = append(list.Environ(), "GOWORK=off")
		list.Stderr = t.Output() // go says there what it downloads
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		modules := strings.Fields(string(out))
		slices.Sort(modules)
		if got := strings.Join(slices.Compact(modules), " "); got != want {
			t.Errorf("go list %q: %s, want %s", arguments, got, want)
		}
	}
}

// The README's commands must not have to download and compile etcd, and what we are measured
// against: only modules outside of go.work may require it.
func TestNoModuleOfTheWorkspaceRequiresEtcd(t *testing.T) {
	list := exec.Command("go", "list", "-m", "-f", "{{.GoMod}}")
	list.Stderr = t.Output()
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.FieldsSeq(string(out)) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, heavy := range []string{"go.etcd.io/etcd/", "google.golang.org/grpc", "github.com/nats-io/", "github.com/redis/"} {
			if strings.Contains(string(content), heavy) {
				t.Errorf("%s requires %s: leave the module out of go.work, and give it a workspace such as cluster/go.work or bench/go.work", file, heavy)
			}
		}
	}
}

// make race leaves out the packages of SEQUENTIAL in the Makefile. Those that only start programs may read their
// output in a goroutine, in tests.
func TestPackagesThatTheRaceDetectorSkipsStartNoGoroutine(t *testing.T) {
	files := repository(t)
	starts := regexp.MustCompile(`(?m)^\s*go |\.Go\(|AfterFunc|Parallel\(`)
	line := regexp.MustCompile(`(?m)^SEQUENTIAL := (.*)$`).FindStringSubmatch(files["Makefile"])
	for folder := range strings.FieldsSeq(line[1]) {
		for name, text := range files {
			exempt := folder == "tools/release" && strings.HasSuffix(name, "_test.go") || name == "code_test.go"
			if path.Dir(name) == folder && path.Ext(name) == ".go" && !exempt && starts.MatchString(text) {
				t.Errorf("%s starts a goroutine, so its package cannot be in SEQUENTIAL of the Makefile", name)
			}
		}
	}
}

// silentSkips are the files with a skip that is no failure in CI either, and why.
var silentSkips = map[string]string{
	"code_test.go":                          "it looks for them",
	"internal/prerequisite/prerequisite.go": "it is the package",
	"tools/release/snapshot_test.go":        "make nightly runs it by its flag",
	"server/access/glob_test.go":            "inputs of a fuzz target that take too long",
	"statestore/statestoretest/table.go":    "what a store does not have is not tested on it",
}

// A test that is skipped because this machine lacks something looks like one that has passed. Package
// internal/prerequisite makes it fail where all tests must run.
func TestASkippedTestFailsInCI(t *testing.T) {
	skip := regexp.MustCompile(`\n(.*)\n.*\.Skip(?:f|Now)?\(`) // the operating system, the race detector and root are known in CI
	known := regexp.MustCompile(`GOOS|UnderRace|raceDetector|Geteuid`)
	for name, text := range repository(t) {
		for _, found := range skip.FindAllStringSubmatch(text, -1) {
			if path.Ext(name) == ".go" && !known.MatchString(found[1]) && silentSkips[name] == "" {
				t.Errorf("%s is skipped in CI too after %q: call prerequisite.Missing, or test runtime.GOOS", name, strings.TrimSpace(found[1]))
			}
		}
	}
}

// A test that waits without a bound can block a run for ten minutes. Package internal/await
// has waits that end. Examples are exempt: they show what a program does, and they wait only
// for what has happened already.
func TestInvariant61NoTestWaitsWithoutABound(t *testing.T) {
	eachGoFile(t, 0, func(name string, files *token.FileSet, file *ast.File) {
		if !strings.HasSuffix(name, "_test.go") && path.Dir(name) != "server/internal/testsupport" {
			return
		}
		inSelect := make(map[ast.Node]bool)
		ast.Inspect(file, func(n ast.Node) bool {
			remedy := ""
			switch n := n.(type) {
			case *ast.FuncDecl:
				return n.Recv != nil || !strings.HasPrefix(n.Name.Name, "Example")
			case *ast.SelectStmt:
				if !isBounded(n, inSelect) {
					remedy = "the select needs a case that ends it: a default, a timer or a context"
				}
			case *ast.UnaryExpr:
				if n.Op == token.ARROW && !inSelect[n] {
					remedy = "receive with await.Receive or await.Next"
				}
			case *ast.CallExpr:
				called, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || called.Sel.Name != "Wait" || len(n.Args) > 0 {
					return true
				}
				if of, ok := called.X.(*ast.Ident); !ok || of.Name != "synctest" {
					remedy = "wait with await.Done or await.Result"
				}
			}
			if remedy != "" {
				t.Errorf("%v: %s", files.Position(n.Pos()), remedy)
			}
			return true
		})
	})
}

// isBounded reports whether a select has a case that ends it without the code under test. It
// adds the receives of its cases to inSelect.
func isBounded(n *ast.SelectStmt, inSelect map[ast.Node]bool) bool {
	bounded := false
	for _, clause := range n.Body.List {
		comm := clause.(*ast.CommClause).Comm
		if comm == nil {
			bounded = true // a default
			continue
		}
		ast.Inspect(comm, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.UnaryExpr:
				inSelect[n] = true
			case *ast.Ident:
				// time.After, timer.C, ctx.Done; what time.After returned; the end of a fake connection
				bounded = bounded || slices.Contains([]string{"After", "C", "Done", "deadline", "closed"}, n.Name)
			}
			return true
		})
	}
	return bounded
}

func TestLinesOfCodeHave120Characters(t *testing.T) {
	for name, text := range repository(t) {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for number, line := range strings.Split(text, "\n") {
			if utf8.RuneCountInString(line) > 120 {
				t.Errorf("%s:%d has %d characters", name, number+1, utf8.RuneCountInString(line))
			}
		}
	}
}
