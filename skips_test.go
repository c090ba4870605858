package tenure_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
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
	"statestore/statestoretest/table.go check":                         "what a store does not have is not tested on it",
}

// skipConditions are the names in a condition that may skip a test without a failure in CI: the
// operating system, the race detector, and the user where a test for root and one for other users complete
// each other.
var skipConditions = []string{"GOOS", "UnderRace", "raceDetector", "Geteuid"}

// A test that is skipped because this machine lacks something looks like one that has passed. Package
// internal/prerequisite makes it fail where all tests must run.
func TestASkippedTestFailsInCI(t *testing.T) {
	used := make(map[string]bool)
	eachGoFile(t, parser.SkipObjectResolution, func(path string, files *token.FileSet, file *ast.File) {
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
	})
	for place := range skipExceptions {
		if !used[place] {
			t.Errorf("%s has no skip that needs an exception", place)
		}
	}
}

// A skip ends the goroutine that calls it. Only in the goroutine of the test does that end the test: in a
// sync.OnceFunc it panics, and in another goroutine the test waits for ever.
func TestPrerequisitesAreAskedForInTheGoroutineOfTheTest(t *testing.T) {
	eachGoFile(t, parser.SkipObjectResolution, func(_ string, files *token.FileSet, file *ast.File) {
		for _, at := range skipsElsewhere(file) {
			t.Errorf("%v: this skips a test in another goroutine, or in a function that runs once: ask before", files.Position(at))
		}
	})
}

// eachGoFile parses each Go file of the repository. It fails the test if there are too few.
func eachGoFile(t *testing.T, mode parser.Mode, visit func(path string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	checked := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && isProduct(path):
			return filepath.SkipDir
		case err != nil || entry.IsDir() || filepath.Ext(path) != ".go":
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, mode)
		if err == nil {
			checked++
			visit(path, files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 500 {
		t.Errorf("only %d files were checked", checked)
	}
}

func TestASkipInAnotherGoroutineIsFound(t *testing.T) {
	for code, want := range map[string]int{
		`sync.OnceValue(func() string { return mosquitto.Start(t, "").Address })`:  1,
		`once.Do(func() { if missing { t.Skip("no") } })`:                          1,
		`func() { go func() { prerequisite.Program(t, "strace", "strace") }() }()`: 1,
		`group.Go(func() { prerequisite.Missing(t, "no") })`:                       1,
		`go func() { t.SkipNow() }()`:                                              1,
		`t.Run("a", func(t *testing.T) { prerequisite.Missing(t, "no") })`:         0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p; func f() { "+code+" }", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if found := skipsElsewhere(file); len(found) != want {
			t.Errorf("%s: %d skips, want %d", code, len(found), want)
		}
	}
}

// skipsElsewhere returns the calls that may skip a test in functions that do not run in the goroutine of
// the test, or run once for several tests.
func skipsElsewhere(file *ast.File) (found []token.Pos) {
	skips := func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if called, ok := call.Fun.(*ast.SelectorExpr); ok {
				owner, _ := called.X.(*ast.Ident)
				if slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, called.Sel.Name) ||
					owner != nil && slices.Contains([]string{"prerequisite", "mosquitto"}, owner.Name) && called.Sel.Name != "LongRun" {
					found = append(found, call.Pos())
				}
			}
		}
		return true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			ast.Inspect(n.Call, skips)
			return false
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if ok && (called.Sel.Name == "Go" || called.Sel.Name == "Do" || strings.HasPrefix(called.Sel.Name, "Once")) {
				for _, argument := range n.Args {
					ast.Inspect(argument, skips)
				}
				return false
			}
		}
		return true
	})
	return found
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
