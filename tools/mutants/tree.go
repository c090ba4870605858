package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A tree is the source of the repository, parsed where it is needed.
type tree struct {
	files    *token.FileSet
	packages map[string]*packageSource // by folder
}

// packageSource is one folder with Go files, tests apart.
type packageSource struct {
	files []*sourceFile
	tests []string // names of the top-level tests
}

type sourceFile struct {
	path   string
	text   []byte
	syntax *ast.File
}

func newTree() *tree {
	return &tree{files: token.NewFileSet(), packages: make(map[string]*packageSource)}
}

// load parses the files of a folder that this platform compiles.
func (t *tree) load(folder string) (*packageSource, error) {
	if p := t.packages[folder]; p != nil {
		return p, nil
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	p := new(packageSource)
	for _, entry := range entries {
		if entry.IsDir() || !strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		if compiled, err := build.Default.MatchFile(folder, entry.Name()); err != nil || !compiled {
			continue
		}
		file := &sourceFile{path: filepath.Join(folder, entry.Name())}
		if file.text, err = os.ReadFile(file.path); err != nil {
			return nil, err
		}
		if file.syntax, err = parser.ParseFile(t.files, file.path, file.text, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		p.files = append(p.files, file)
		if strings.HasSuffix(file.path, "_test.go") {
			for _, d := range file.syntax.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
					p.tests = append(p.tests, f.Name.Name)
				}
			}
		}
	}
	t.packages[folder] = p
	return p, nil
}

// hasTest reports whether a -run pattern matches a test of a package.
func (t *tree) hasTest(folder, pattern string) (bool, error) {
	p, err := t.load(filepath.Clean(folder))
	if err != nil {
		return false, err
	}
	first, _, _ := strings.Cut(pattern, "/")
	expression, err := regexp.Compile(first)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(p.tests, expression.MatchString), nil
}

// A span is a range of bytes of a file, and what replaces it.
type span struct {
	file        *sourceFile
	start, end  int
	replacement string
}

// mutate returns the file that a mutant changes and its text afterwards.
func (t *tree) mutate(m *mutant) (path string, text []byte, err error) {
	p, err := t.load(m.folder)
	if err != nil {
		return "", nil, err
	}
	var spans []span
	declared := p.declarations(m.declaration)
	if len(declared) == 0 {
		return "", nil, fmt.Errorf("%s declares no %s", m.folder, m.declaration)
	}
	for _, c := range m.changes {
		var found []span
		for _, d := range declared {
			found = append(found, t.find(d, c)...)
		}
		switch {
		case len(found) != 1:
			return "", nil, fmt.Errorf("occurs %d times in %s, want once:\n%s", len(found), m.declaration, c.old)
		case len(spans) > 0 && spans[0].file != found[0].file:
			return "", nil, errors.New("the changes are in two files")
		}
		spans = append(spans, found[0])
	}
	slices.SortFunc(spans, func(a, b span) int { return b.start - a.start }) // so that offsets stay valid
	file := spans[0].file
	text = slices.Clone(file.text)
	for i, s := range spans {
		if i > 0 && spans[i-1].start < s.end {
			return "", nil, errors.New("two changes overlap")
		}
		text = slices.Replace(text, s.start, s.end, []byte(s.replacement)...)
	}
	if _, err := parser.ParseFile(token.NewFileSet(), file.path, text, parser.SkipObjectResolution); err != nil {
		return "", nil, fmt.Errorf("the replacement is not Go: %w", err)
	}
	path, err = filepath.Abs(file.path)
	return path, text, err
}

// A declaration is what "in" names, and the file where it is.
type declaration struct {
	node ast.Node
	file *sourceFile
}

// declarations returns the declarations with a name outside of tests: Name or Type.Method.
func (p *packageSource) declarations(name string) (found []declaration) {
	for _, file := range p.files {
		if strings.HasSuffix(file.path, "_test.go") {
			continue
		}
		for _, d := range file.syntax.Decls {
			if node := declared(d, name); node != nil {
				found = append(found, declaration{node, file})
			}
		}
	}
	return found
}

// declared returns what a declaration at the top level declares with a name, or nil.
func declared(d ast.Decl, name string) ast.Node {
	switch d := d.(type) {
	case *ast.FuncDecl:
		own := d.Name.Name
		if d.Recv != nil {
			receiver, _, _ := strings.Cut(types.ExprString(d.Recv.List[0].Type), "[")
			own = strings.TrimPrefix(receiver, "*") + "." + own
		}
		if own == name {
			return d
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.Name == name {
					return spec
				}
			case *ast.ValueSpec:
				if slices.ContainsFunc(spec.Names, func(n *ast.Ident) bool { return n.Name == name }) {
					return spec
				}
			}
		}
	}
	return nil
}

// find returns where the old text of a change is in a declaration: it begins and ends with a node of syntax.
func (t *tree) find(in declaration, c change) (found []span) {
	starts, ends := make(map[int]bool), make(map[int]bool)
	base := t.files.File(in.node.Pos()).Base()
	ast.Inspect(in.node, func(n ast.Node) bool {
		if n != nil {
			starts[int(n.Pos())-base], ends[int(n.End())-base] = true, true
		}
		return n != nil
	})
	replacement := strings.TrimSpace(c.new)
	_, notExpression := parser.ParseExpr(c.old)
	if e, err := parser.ParseExpr(replacement); err == nil && notExpression == nil {
		if _, ok := e.(*ast.BinaryExpr); ok {
			replacement = "(" + replacement + ")"
		}
	}
	first := int(in.node.Pos()) - base
	have, want := words(in.file.text[first:int(in.node.End())-base]), words([]byte(c.old))
	for i := 0; len(want) > 0 && i+len(want) <= len(have); i++ {
		part := have[i : i+len(want)]
		start, end := first+part[0].offset, first+part[len(part)-1].end()
		same := slices.EqualFunc(part, want, func(a, b word) bool { return a.text == b.text })
		if same && starts[start] && ends[end] {
			found = append(found, span{in.file, start, end, replacement})
		}
	}
	return found
}

// A word is a token of Go.
type word struct {
	text   string
	offset int
}

func (w word) end() int { return w.offset + len(w.text) }

// words returns the tokens of a text, but comments, line ends and trailing commas.
func words(text []byte) (list []word) {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(text))
	s.Init(file, text, func(token.Position, string) {}, 0)
	for {
		position, kind, literal := s.Scan()
		if kind == token.EOF {
			return list
		}
		if kind == token.SEMICOLON && literal == "\n" {
			continue
		}
		closes := kind == token.RPAREN || kind == token.RBRACE || kind == token.RBRACK
		if closes && len(list) > 0 && list[len(list)-1].text == "," {
			list = list[:len(list)-1]
		}
		if literal == "" || kind.IsOperator() {
			literal = kind.String()
		}
		list = append(list, word{literal, file.Offset(position)})
	}
}
