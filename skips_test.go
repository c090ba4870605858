package tenure_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
)

// skipExceptions are the functions with a skip that neither needs package internal/prerequisite nor
// depends on what skipConditions names, and why.
var skipExceptions = map[string]string{
	"internal/prerequisite/prerequisite.go Long":                       "a long test is skipped for want of time, in CI too",
	"internal/prerequisite/prerequisite.go Missing":                    "it is the package",
	"release/snapshot_test.go TestTheSnapshotInstallsRunsAndIsRemoved": "the gate runs it by its flag",
	"server/access/glob_test.go FuzzGlob":                              "inputs of a fuzz target that take too long",
	"server/bench/connections_test.go TestServerOfConnections":         "no test: a process of a benchmark",
	"server/bench/handover_test.go TestHolderThatIsKilled":             "no test: a process of a benchmark",
	"statestore/statestoretest/table.go check":                         "what a store does not have is not tested on it",
}

// skipConditions are the names in a condition that may skip a test without a failure in CI: the
// operating system, the choice of a short run, the race detector, and the user where a test for root
// and one for other users complete each other. CanTrySend is false on Windows only: elsewhere the tests
// of internal/mqttnet fail if it is.
var skipConditions = []string{"GOOS", "Short", "UnderRace", "raceDetector", "Geteuid", "CanTrySend"}

// A test that is skipped because this machine lacks something looks like one that has passed. Package
// internal/prerequisite makes it fail where all tests must run.
func TestASkippedTestFailsInCI(t *testing.T) {
	checked, used := 0, make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && isProduct(path):
			return filepath.SkipDir
		case err != nil || entry.IsDir() || filepath.Ext(path) != ".go":
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, at := range silentSkips(function) {
				place := filepath.ToSlash(path) + " " + function.Name.Name
				if used[place] = true; skipExceptions[place] == "" {
					t.Errorf("%v: %s is skipped in CI too: call prerequisite.Missing, or test runtime.GOOS", files.Position(at), place)
				}
			}
		}
		checked++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 500 {
		t.Errorf("only %d files were checked", checked)
	}
	for place := range skipExceptions {
		if !used[place] {
			t.Errorf("%s has no skip that needs an exception", place)
		}
	}
}

// silentSkips returns the calls of Skip, Skipf and SkipNow in a function that are not in the body of an
// if with one of skipConditions.
func silentSkips(function *ast.FuncDecl) (found []token.Pos) {
	var above []ast.Node
	ast.Inspect(function, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return true
		}
		above = append(above, n)
		if call, ok := n.(*ast.CallExpr); ok {
			called, ok := call.Fun.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, called.Sel.Name) && !mayBeSilent(above) {
				found = append(found, call.Pos())
			}
		}
		return true
	})
	return found
}

// mayBeSilent reports whether the innermost if around a node has one of skipConditions. The nodes are
// the path to it; its else is not in the body of the if.
func mayBeSilent(above []ast.Node) (silent bool) {
	for i := len(above) - 2; i >= 0; i-- {
		statement, ok := above[i].(*ast.IfStmt)
		if !ok || above[i+1] != statement.Body {
			continue
		}
		ast.Inspect(statement.Cond, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok && slices.Contains(skipConditions, name.Name) {
				silent = true
			}
			return true
		})
		return silent
	}
	return false
}
