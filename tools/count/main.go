// Command count prints how much code the repository has, against its budgets.
//
//	go run ./tools/count
//
// It runs at the root of the repository. A line of code is one on which a token of Go is: comments
// and blank lines are none. All platforms count, and so does each line of a string. A file
// *_test.go counts as test; any other file counts to the area of its folder.
//
// Symbols are what a package of the root module exports: functions, types, constants and
// variables; methods and fields of exported types; methods of exported interfaces.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// An area has a budget for its lines of code. Without one, the budget is 0.
type area struct {
	kind, name string
	budget     int
	folders    []string // with all below them, but for what another area names
}

// A new package below internal/ counts to the client until a line here says otherwise.
var areas = []area{
	{"product", "transport and the client's internal packages", 4500, []string{".", "transport", "internal"}},
	{"product", "lease", 1700, []string{"lease"}},
	{"product", "election", 900, []string{"election"}},
	{"product", "fencing", 800, []string{"fencing"}},
	{"product", "hlc", 0, []string{"hlc"}},
	{"product", "resp3", 0, []string{"resp3"}},
	{"product", "statestore and engine", 0, []string{"statestore", "internal/engine"}},
	{"product", "server: broker, access, standby", 4500,
		[]string{"server", "internal/descriptors", "internal/diskspace", "internal/semaphore", "internal/unauthenticated"}},
	{"product", "server: activity and events", 700,
		[]string{"server/activity", "server/internal/events", "internal/shown"}},
	{"product", "server: journal", 1400, []string{"server/journal"}},
	{"product", "server: attach", 1200, []string{"server/attach"}},
	{"product", "cmd: command", 2600, []string{"cmd"}},
	{"product", "cmd: supervise", 1700, []string{"cmd/tenure/internal/supervise"}},
	{"product", "cmd: other packages", 2400, []string{"cmd/tenure/internal"}},
	{"product", "cluster", 0, []string{"cluster"}},
	{"product", "contrib", 0, []string{"contrib"}},
	{"tools", "bench", 2000, []string{"bench", "server/bench"}},
	{"tools", "crashtest and takeover", 1500, []string{"server/crashtest", "cluster/takeover"}},
	{"tools", "abuse", 1400, []string{"server/abuse"}},
	{"tools", "test support", 2200, []string{
		"internal/await", "internal/certificates", "internal/compiled", "internal/explore",
		"internal/failpoint", "internal/logbuffer",
		"internal/mosquitto", "internal/prerequisite", "internal/testprocess", "statestore/statestoretest",
		"transport/transporttest",
		"server/internal/rawmqtt", "server/internal/testsupport", "server/servertest", "cluster/internal",
	}},
	{"tools", "examples and demos", 1200, []string{"examples"}},
	{"tools", "mutants, count, walk, release", 0, []string{"server/walk", "tools"}},
}

var budgets = map[string]int{"product": 29_000, "tools": 10_000, "tests": 50_000, "words": 25_000}

var symbolBudgets = map[string]int{"transport": 140, "lease": 80, "election": 55, "fencing": 40}

func main() {
	if err := count(os.DirFS("."), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

func count(tree fs.FS, out io.Writer) error {
	sums := make(map[string]int)       // by name of an area, or as budgets
	symbols := make(map[string]string) // their folders
	var modules []string               // but the root
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && strings.HasPrefix(entry.Name(), ".") ||
				slices.Contains([]string{"bin", "dist", "testdata"}, entry.Name()) {
				return fs.SkipDir
			}
			if _, err := fs.Stat(tree, name+"/go.mod"); err == nil && name != "." {
				modules = append(modules, name+"/")
			}
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		switch {
		case err != nil:
			return err
		case path.Ext(name) == ".md":
			sums["words"] += len(strings.Fields(string(text)))
		case strings.HasSuffix(name, "_test.go"):
			sums["tests"] += codeLines(text)
		case path.Ext(name) == ".go":
			a, n := areaOf(name), codeLines(text)
			sums[a.name] += n
			sums[a.kind] += n
			isBelow := func(module string) bool { return strings.HasPrefix(name, module) }
			if !strings.Contains(name, "internal/") && !slices.ContainsFunc(modules, isBelow) {
				return export(symbols, name, text)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	kind := ""
	for _, a := range areas {
		if a.kind != kind {
			kind = a.kind
			fmt.Fprintf(out, "%-44s %s\n", "lines of "+kind, of(sums[kind], budgets[kind]))
		}
		fmt.Fprintf(out, "  %-42s %s\n", a.name, of(sums[a.name], a.budget))
	}
	fmt.Fprintf(out, "%-44s %s\n%-44s %s\nexported symbols\n", "lines of tests",
		of(sums["tests"], budgets["tests"]), "words of documents", of(sums["words"], budgets["words"]))
	exported := make(map[string]int)
	for _, folder := range symbols {
		exported[folder]++
	}
	for _, folder := range slices.Sorted(maps.Keys(exported)) {
		fmt.Fprintf(out, "  %-42s %s\n", folder, of(exported[folder], symbolBudgets[folder]))
	}
	return nil
}

// of returns a number and its budget, if it has one.
func of(n, budget int) string {
	if budget == 0 {
		return fmt.Sprintf("%6d", n)
	}
	return fmt.Sprintf("%6d of %d", n, budget)
}

// areaOf returns the area with the longest folder that the file is below.
func areaOf(file string) (best area) {
	longest := -1
	for _, a := range areas {
		for _, folder := range a.folders {
			if (folder == "." || strings.HasPrefix(file, folder+"/")) && len(folder) > longest {
				best, longest = a, len(folder)
			}
		}
	}
	return best
}

// codeLines returns on how many lines a token is.
func codeLines(text []byte) (n int) {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	last := 0
	for {
		position, kind, literal := s.Scan()
		if kind == token.EOF {
			return n
		}
		if kind == token.SEMICOLON && literal == "\n" {
			continue // the scanner's own
		}
		first := file.Line(position)
		end := first + strings.Count(literal, "\n")
		n, last = n+end-max(first-1, last), end
	}
}

// export adds what a file exports, each with its folder, unless the file is of a program.
func export(symbols map[string]string, name string, text []byte) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil || file.Name.Name == "main" {
		return err
	}
	folder, of := path.Dir(name), "" // the type whose fields or methods come
	add := func(names ...*ast.Ident) {
		for _, name := range names {
			if of == "" || token.IsExported(of) {
				symbols[folder+" "+of+"."+name.Name] = folder
			}
		}
	}
	ast.FileExports(file)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if of = ""; n.Recv != nil {
				of = typeName(n.Recv.List[0].Type)
			}
			add(n.Name)
		case *ast.GenDecl:
			of = ""
			return true
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.TypeSpec:
			add(n.Name)
			of, n.TypeParams = n.Name.Name, nil
			return true
		case *ast.Field: // what is embedded has its type's name
			if add(n.Names...); n.Names == nil {
				add(ast.NewIdent(typeName(n.Type)))
			}
		case *ast.File, *ast.StructType, *ast.InterfaceType, *ast.FieldList:
			return true
		}
		return false
	})
	return nil
}

// typeName returns the name in a type such as *lease.Tenure or Guard[T].
func typeName(t ast.Expr) string {
	name, _, _ := strings.Cut(types.ExprString(t), "[")
	return name[strings.LastIndexAny(name, "*.")+1:]
}
