package tenure_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// startsNothing are the packages that import os/exec and start no process for tests, their own or others':
// prerequisite looks for programs.
var startsNothing = []string{"internal/prerequisite"}

// What tests start ends with the test process only if package internal/testprocess runs them.
func TestTestsThatStartProcessesAreRunByTestprocess(t *testing.T) {
	const module = "github.com/tenurelock/tenure/"
	type folder struct {
		runs          bool     // its TestMain calls testprocess.Run
		starts, tests []string // what its other files, and its tests, import
	}
	folders := make(map[string]*folder)
	eachGoFile(t, parser.ImportsOnly, func(file string, _ *token.FileSet, parsed *ast.File) {
		name := filepath.ToSlash(filepath.Dir(file))
		in := folders[name]
		if in == nil {
			in = new(folder)
			folders[name] = in
		}
		for _, i := range parsed.Imports {
			imported := strings.TrimPrefix(strings.Trim(i.Path.Value, `"`), module)
			if strings.HasSuffix(file, "_test.go") {
				in.runs = in.runs || imported == "internal/testprocess"
				in.tests = append(in.tests, imported)
			} else {
				in.starts = append(in.starts, imported)
			}
		}
	})
	starts := func(imported string) bool {
		in := folders[imported]
		return imported == "os/exec" || in != nil && slices.Contains(in.starts, "os/exec") && !slices.Contains(startsNothing, imported)
	}
	checked := 0
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		in := folders[name]
		if name == "internal/testprocess" || len(in.tests) == 0 || !slices.ContainsFunc(append(in.tests, name), starts) {
			continue
		}
		if checked++; !in.runs {
			t.Errorf("%s: its tests start processes, so its TestMain has to call testprocess.Run", path.Join(name, "*_test.go"))
		}
	}
	if checked < 20 {
		t.Errorf("only %d packages were checked", checked)
	}
}
