package tenure_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A test that waits without a bound can block a run for ten minutes. Package internal/await
// has waits that end. Examples are exempt: they show what a program does, and they wait only
// for what has happened already.
func TestInvariant61NoTestWaitsWithoutABound(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && isProduct(path):
			return filepath.SkipDir
		case err != nil || entry.IsDir() || !isTestCode(path):
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, wait := range unboundedWaits(file) {
			t.Errorf("%v: %s", files.Position(wait.at), wait.remedy)
		}
		checked++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 100 {
		t.Errorf("only %d files were checked", checked)
	}
}

type unboundedWait struct {
	at     token.Pos
	remedy string
}

// unboundedWaits returns the receives outside of a select, the selects that no timer or
// context can end, and the calls of a Wait.
func unboundedWaits(file *ast.File) (found []unboundedWait) {
	inSelect := make(map[ast.Node]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return n.Recv != nil || !strings.HasPrefix(n.Name.Name, "Example")
		case *ast.SelectStmt:
			if !isBounded(n, inSelect) {
				found = append(found, unboundedWait{n.Pos(), "the select needs a case that ends it: a default, a timer or a context"})
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && !inSelect[n] {
				found = append(found, unboundedWait{n.Pos(), "receive with await.Receive or await.Next"})
			}
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if ok && called.Sel.Name == "Receive" && len(n.Args) == 1 && isTimeAfter(n.Args[0]) {
				found = append(found, unboundedWait{n.Pos(), "a time that passes is no event: ask with await.Until, or sleep in a bubble"})
			}
			if !ok || called.Sel.Name != "Wait" || len(n.Args) > 0 {
				return true
			}
			if of, ok := called.X.(*ast.Ident); !ok || of.Name != "synctest" {
				found = append(found, unboundedWait{n.Pos(), "wait with await.Done or await.Result"})
			}
		}
		return true
	})
	return found
}

// isTimeAfter reports whether an expression is a call of time.After.
func isTimeAfter(n ast.Expr) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := called.X.(*ast.Ident)
	return ok && of.Name == "time" && called.Sel.Name == "After"
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
				switch n.Name {
				case "After", "C", "Done": // time.After, timer.C, ctx.Done
					bounded = true
				case "deadline", "closed": // what time.After returned; the end of a fake connection
					bounded = true
				}
			}
			return true
		})
	}
	return bounded
}

// isTestCode reports whether a file is a test or a helper that only tests use.
func isTestCode(path string) bool {
	return strings.HasSuffix(path, "_test.go") || filepath.Ext(path) == ".go" &&
		filepath.ToSlash(filepath.Dir(path)) == "server/internal/testsupport"
}
