package tenure_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
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
	"time"
)

var update = flag.Bool("update", false, "write the lists of tests in docs/invariants.md")

const (
	protocolDocument   = "docs/protocol.md"
	invariantsDocument = "docs/invariants.md"
)

// A document is the text of a source file, with each comment joined to one line: a citation
// may be broken over two lines.
type document struct{ path, text string }

var commentBreak = regexp.MustCompile(`\n[\t ]*(?://[\t ]?)?`)

// isProduct reports whether a directory has what the Makefile has made. It may change while tests run.
func isProduct(name string) bool { return name == "bin" || name == "dist" }

// documents returns all files of the repository that cite the norms.
func documents(t *testing.T) (found []document) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (isProduct(name) || name != "." && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".ci"):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".md", ".txt", "":
		default:
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.ContainsRune(content, 0) {
			found = append(found, document{filepath.ToSlash(name), commentBreak.ReplaceAllString(string(content), " ")})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 200 {
		t.Fatalf("only %d files were read", len(found))
	}
	return found
}

// An invariant is an item of docs/invariants.md.
type invariant struct {
	number  int
	planned bool
	tests   []string // as "package: name"
}

var (
	itemStart    = regexp.MustCompile(`^(\d+)\. `)
	testInDoc    = regexp.MustCompile("^    - `([^`]*)`: (.*)$")
	nameInDoc    = regexp.MustCompile("`([A-Za-z0-9_]+)`")
	numberInName = regexp.MustCompile(`^(?:Test|Fuzz)Invariants?(\d+(?:And\d+)*)`)
	numberInText = regexp.MustCompile(`[Ii]nvariants? (\d+(?:(?:, | and |, and | to )\d+)*)|docs/invariants\.md (\d+(?:(?:, | and )\d+)*)`)
	digits       = regexp.MustCompile(`\d+`)
)

func readInvariants(t *testing.T) (found []invariant) {
	t.Helper()
	content, err := os.ReadFile(invariantsDocument)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		if item := itemStart.FindStringSubmatch(line); item != nil {
			number, _ := strconv.Atoi(item[1])
			found = append(found, invariant{number: number})
		}
		if len(found) == 0 {
			continue
		}
		last := &found[len(found)-1]
		last.planned = last.planned || strings.Contains(line, "*(planned:")
		if list := testInDoc.FindStringSubmatch(line); list != nil {
			for _, name := range nameInDoc.FindAllStringSubmatch(list[2], -1) {
				last.tests = append(last.tests, list[1]+": "+name[1])
			}
		}
	}
	return found
}

// testsByInvariant returns the tests that carry the number of an invariant in their name or
// in their comment, as "package: name".
func testsByInvariant(t *testing.T) map[int][]string {
	t.Helper()
	found := make(map[int][]string)
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && isProduct(name):
			return filepath.SkipDir
		case err != nil || entry.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		room := path.Dir(filepath.ToSlash(name))
		if room == "." {
			room = "tenure"
		}
		for _, declaration := range file.Decls {
			test, ok := declaration.(*ast.FuncDecl)
			if !ok || test.Recv != nil || !strings.HasPrefix(test.Name.Name, "Test") && !strings.HasPrefix(test.Name.Name, "Fuzz") {
				continue
			}
			var numbers []int
			if in := numberInName.FindStringSubmatch(test.Name.Name); in != nil {
				numbers = numbersIn(in[1])
			}
			comment := strings.ReplaceAll(test.Doc.Text(), "\n", " ")
			for _, in := range numberInText.FindAllStringSubmatch(comment, -1) {
				numbers = append(numbers, numbersIn(in[1]+" "+in[2])...)
			}
			slices.Sort(numbers)
			for _, number := range slices.Compact(numbers) {
				found[number] = append(found[number], room+": "+test.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tests := range found {
		slices.Sort(tests)
	}
	return found
}

func numbersIn(text string) (numbers []int) {
	for _, number := range digits.FindAllString(text, -1) {
		n, _ := strconv.Atoi(number)
		numbers = append(numbers, n)
	}
	return numbers
}

func TestDocsNumberTheInvariantsOneToSixtyTwo(t *testing.T) {
	invariants := readInvariants(t)
	for i, invariant := range invariants {
		if invariant.number != i+1 {
			t.Fatalf("invariant %d is in place %d of %s", invariant.number, i+1, invariantsDocument)
		}
	}
	if len(invariants) != 62 {
		t.Errorf("%s has %d invariants", invariantsDocument, len(invariants))
	}
}

func TestDocsNameTheTestsOfEachInvariant(t *testing.T) {
	tests := testsByInvariant(t)
	if *update {
		writeTests(t, tests)
	}
	for _, invariant := range readInvariants(t) {
		held := tests[invariant.number]
		switch {
		case len(held) == 0 && !invariant.planned:
			t.Errorf("invariant %d has no test with its number in its name or comment", invariant.number)
		case len(held) > 0 && invariant.planned:
			t.Errorf("invariant %d is marked as planned, and has tests: %q", invariant.number, held)
		}
		for _, name := range invariant.tests {
			if !slices.Contains(held, name) {
				t.Errorf("invariant %d: %s names %s, which is not there; run go test . -run TestDocs -update", invariant.number, invariantsDocument, name)
			}
		}
		for _, name := range held {
			if !slices.Contains(invariant.tests, name) {
				t.Errorf("invariant %d: %s does not name %s; run go test . -run TestDocs -update", invariant.number, invariantsDocument, name)
			}
		}
	}
}

// writeTests replaces the lists of tests in docs/invariants.md.
func writeTests(t *testing.T, tests map[int][]string) {
	t.Helper()
	content, err := os.ReadFile(invariantsDocument)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	item := 0
	endItem := func() {
		rooms := make(map[string][]string)
		var order []string
		for _, test := range tests[item] {
			room, name, _ := strings.Cut(test, ": ")
			if rooms[room] == nil {
				order = append(order, room)
			}
			rooms[room] = append(rooms[room], "`"+name+"`")
		}
		for _, room := range order {
			fmt.Fprintf(&out, "    - `%s`: %s\n", room, strings.Join(rooms[room], ", "))
		}
		item = 0
	}
	for line := range strings.Lines(string(content)) {
		switch start := itemStart.FindStringSubmatch(line); {
		case testInDoc.MatchString(strings.TrimRight(line, "\n")):
			continue
		case start != nil:
			endItem()
			item, _ = strconv.Atoi(start[1])
		case line == "\n":
			endItem()
		}
		out.WriteString(line)
	}
	endItem()
	if err := os.WriteFile(invariantsDocument, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDocsHaveEachInvariantThatIsCited(t *testing.T) {
	last := len(readInvariants(t))
	cited := 0
	check := func(document document, number int, citation string) {
		cited++
		if number < 1 || number > last {
			t.Errorf("%s cites %q: %s ends with %d", document.path, citation, invariantsDocument, last)
		}
	}
	inNames := regexp.MustCompile(`(?:Test|Fuzz)Invariants?(\d+(?:And\d+)*)`)
	for _, document := range documents(t) {
		for _, pattern := range []*regexp.Regexp{numberInText, inNames} {
			for _, citation := range pattern.FindAllStringSubmatch(document.text, -1) {
				for _, number := range numbersIn(strings.Join(citation[1:], " ")) {
					check(document, number, citation[0])
				}
			}
		}
	}
	if cited < 200 {
		t.Errorf("only %d citations were found", cited)
	}
}

func TestDocsHaveEachSectionOfTheProtocolThatIsCited(t *testing.T) {
	content, err := os.ReadFile(protocolDocument)
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]bool)
	for _, heading := range regexp.MustCompile(`(?m)^##+ ([\d.]*\d)\.? `).FindAllStringSubmatch(string(content), -1) {
		sections[heading[1]] = true
	}
	citation := regexp.MustCompile(`docs/protocol\.md (§[\d.]*\d(?:(?:, | and |, and )§[\d.]*\d)*)`)
	inNames := regexp.MustCompile(`(?:Test|Fuzz)Protocol(\d+)`)
	section := regexp.MustCompile(`[\d.]*\d`)
	own := regexp.MustCompile(`§([\d.]*\d)`)
	cited := 0
	for _, document := range documents(t) {
		citations := append(citation.FindAllStringSubmatch(document.text, -1), inNames.FindAllStringSubmatch(document.text, -1)...)
		if document.path == protocolDocument {
			citations = own.FindAllStringSubmatch(document.text, -1)
		}
		for _, c := range citations {
			for _, number := range section.FindAllString(c[1], -1) {
				if cited++; !sections[number] {
					t.Errorf("%s cites section %s of %s, which is not there", document.path, number, protocolDocument)
				}
			}
		}
	}
	if cited < 50 {
		t.Errorf("only %d citations were found", cited)
	}
}

// Earlier citations named documents that were not in the repository. The patterns are put
// together here so that this file does not cite them.
func TestDocsCiteNoDocumentOutsideOfTheRepository(t *testing.T) {
	old := regexp.MustCompile(`\b(?:PROTO` + `COL|INVAR` + `IANTS?|PIT` + `FALLS)\b|\bDES` + `IGN \d|/?\bsha` + `red/[A-Z]`)
	for _, document := range documents(t) {
		for _, citation := range old.FindAllString(document.text, -1) {
			t.Errorf("%s cites %q; cite docs/protocol.md §n or docs/invariants.md n", document.path, citation)
		}
	}
}

// A link in a document leads to a file of the repository. In tables CONTRIBUTING.md and
// docs/design.md name files in backquotes, and what is declared there.
func TestDocsLeadToFilesThatExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	inTable := regexp.MustCompile("(?:`([A-Za-z.]+)` in )?`([a-z][\\w./-]*/[\\w.-]*)`")
	checked := 0
	for _, document := range documents(t) {
		if path.Ext(document.path) != ".md" {
			continue
		}
		for _, to := range link.FindAllStringSubmatch(document.text, -1) {
			checked++
			if _, err := os.Stat(path.Join(path.Dir(document.path), to[1])); err != nil {
				t.Errorf("%s: %v", document.path, err)
			}
		}
		if document.path != "CONTRIBUTING.md" && document.path != "docs/design.md" {
			continue
		}
		content, err := os.ReadFile(document.path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			for _, named := range inTable.FindAllStringSubmatch(line, -1) {
				checked++
				declared := named[1][strings.LastIndex(named[1], ".")+1:]
				if info, err := os.Stat(named[2]); err != nil {
					t.Errorf("%s: %v", document.path, err)
				} else if declared == "" || info.IsDir() {
					continue
				} else if source, err := os.ReadFile(named[2]); err != nil || !bytes.Contains(source, []byte(declared)) {
					t.Errorf("%s: %s has no %s", document.path, named[2], declared)
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d names were checked", checked)
	}
}

// Names of Go and flags of the command that a document has in backquotes are in the code.
// Decisions and the changelog may name what is gone.
func TestDocsNameWhatTheCodeHas(t *testing.T) {
	var documented []document
	words := make(map[string]bool)
	word := regexp.MustCompile(`[A-Za-z_][\w-]*`)
	for _, document := range documents(t) {
		switch {
		case path.Ext(document.path) == ".go":
			for _, word := range word.FindAllString(document.text, -1) {
				words[word] = true
			}
		case path.Ext(document.path) == ".md" && !strings.HasPrefix(document.path, "docs/adr/") && document.path != "CHANGELOG.md":
			documented = append(documented, document)
		}
	}
	inBackquotes := regexp.MustCompile("`(?:[A-Za-z]+\\.)+([A-Z]\\w+)`|`--([a-z-]+)[^`]*`")
	checked := 0
	for _, document := range documented {
		for _, name := range inBackquotes.FindAllStringSubmatch(document.text, -1) {
			if checked++; !words[name[1]+name[2]] {
				t.Errorf("%s names %s, which the code does not have", document.path, name[0])
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d names were checked", checked)
	}
}

func TestDocsShowTheProgramOfTheReadmeAsItIs(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("examples/election/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(source), "package main\n")
	if !strings.Contains(string(readme), "```go\npackage main\n"+program+"```\n") {
		t.Error("README.md does not show examples/election/main.go")
	}
}

var testNamed = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)`")

// A document that says which test holds a promise must not outlive the test.
func TestDocsNameTestsThatExist(t *testing.T) {
	exist := make(map[string]bool)
	for _, source := range documents(t) {
		if strings.HasSuffix(source.path, "_test.go") {
			for _, function := range testDeclared.FindAllStringSubmatch(source.text, -1) {
				exist[function[1]] = true
			}
		}
	}
	for _, document := range documents(t) {
		if !strings.HasSuffix(document.path, ".md") {
			continue
		}
		for _, named := range testNamed.FindAllStringSubmatch(document.text, -1) {
			if !exist[named[1]] {
				t.Errorf("%s names %s, which no file of tests has", document.path, named[1])
			}
		}
	}
}

var testDeclared = regexp.MustCompile(`func ((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)\(`)

// docs/faq.md calculates with the defaults.
func TestDocsShowTheArithmeticOfALease(t *testing.T) {
	document, err := os.ReadFile("docs/faq.md")
	if err != nil {
		t.Fatal(err)
	}
	const ttl = 2 * time.Second
	margin, grace, jitter, renewEvery := ttl/10, ttl/10, ttl/10, ttl/6 // says lease.Options
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s" }
	for _, want := range []string{
		fmt.Sprintf("the next renewal is due | %.2f s |", renewEvery.Seconds()),
		"stop the work | " + seconds(ttl-margin-grace) + " |",
		"guards refuse | " + seconds(ttl-margin) + " |",
		"another one holds it | " + seconds(ttl) + " to " + seconds(ttl+jitter) + " or more |",
		"TTL + `Jitter` = " + seconds(ttl+jitter),
	} {
		if !strings.Contains(string(document), want) {
			t.Errorf("docs/faq.md does not have %q", want)
		}
	}
}
